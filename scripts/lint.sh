#!/usr/bin/env bash
# Checks with clang 14, into build-clang/ and build-tidy/: scripts/lint.sh thread-safety [--quick] | tidy [BASE | --all | FILE...]
#   thread-safety  compiles everything with -Werror=thread-safety (lock annotations, base/include/sluice/base/mutex.hpp)
#                  and warnings as errors; --quick: only the libraries that need no LibTorch
#   tidy           clang-tidy over the C++ files changed since BASE (the branch point from origin/main, or else the last
#                  commit), over those named, or over all; a warning fails (.clang-tidy says which checks, and why).
#                  --all reads the sources of a folder together, since LibTorch's headers take most of the time
#                  Files that passed and have not changed since, nor a header of theirs, are left out
#                  (.cache/tidy/; remove it to read all again)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

build=build-clang
sources="$repo/(base|bench|cpu_adam|engine|examples|nvme|offload|python|tests|zero)/.*[.][ch]pp$"
usage="usage: scripts/lint.sh thread-safety [--quick] | tidy [BASE | --all | FILE...]"
quick_targets=(sluice_base sluice_nvme sluice_cpu_adam sluice_offload sluice_zero
  sluice_config sluice_plan sluice_models_data sluice_train_api sluice_cli)

configure() {
  command -v clang++-14 >/dev/null || fail "clang++-14 is not installed; run scripts/setup.sh"
  local log=.cache/lint-configure.log
  mkdir -p .cache
  cmake --preset "${build#build-}" >"$log" 2>&1 || { cat "$log" >&2; fail "the configuration failed"; }
}

build_with_clang() { cmake --build "$build" --parallel "$(build_jobs)" ${1:+--target "$@"} -- -k 0; }

thread_safety() {
  configure
  case "${1:-}" in
    "") build_with_clang ;;
    --quick) build_with_clang "${quick_targets[@]}" ;;
    *) fail "$usage" ;;
  esac
  say "thread safety: passed"
}

branch_point() { git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~1; }

changed_since() { git diff --name-only --diff-filter=d "$1" -- '*.cpp' '*.hpp'; }

tidy() {
  command -v clang-tidy-14 >/dev/null || fail "clang-tidy-14 is not installed; run scripts/setup.sh"
  local files=() all units headers options=() passed=.cache/tidy
  if [[ "${1:-}" == *.[ch]pp ]]; then
    files=("$@")
  elif [[ "${1:-}" == --all ]]; then
    build=build-tidy options=("--header-filter=$sources" "--checks=-bugprone-suspicious-include")
  else
    local base="${1:-$(branch_point)}"
    git rev-parse --quiet --verify "$base^{commit}" >/dev/null || fail "$base is no commit; $usage"
    mapfile -t files < <(changed_since "$base")
    if ((${#files[@]} == 0)); then
      say "tidy: no C++ file has changed since $base"
      return
    fi
  fi
  configure
  mapfile -t all < <(scripts/tidy_units.py "$build" "${files[@]}" | grep .)
  if ((${#all[@]} == 0)); then fail "none of these files is compiled: ${files[*]}"; fi
  mkdir -p "$passed"
  mapfile -t units < <(printf '%s\n' "${all[@]}" | while read -r key unit; do
    [[ -e "$passed/$key" ]] || echo "$key $unit"
  done)
  say "tidy: ${#all[@]} units, ${#units[@]} of them changed since they passed"
  if ((${#units[@]} > 0)); then
    mapfile -t headers < <(scripts/tidy_units.py --headers "$build" "${units[@]#* }" | grep .)
    if ((${#headers[@]} > 0)); then ninja -C "$build" "${headers[@]}" >/dev/null; fi
    # shellcheck disable=SC2016  # the variables are those of the inner shell
    printf '%s\0' "${units[@]}" | xargs -0 -P "$(build_jobs)" -I{} bash -c \
      'read -r key unit <<<"$1" && clang-tidy-14 --quiet --warnings-as-errors="*" -p "$2" "${@:4}" "$unit" 2>/dev/null && touch "$3/$key"' \
      -- {} "$build" "$passed" "${options[@]}" || fail "clang-tidy warns"
  fi
  say "tidy: passed"
}

case "${1:-}" in
  thread-safety) thread_safety "${@:2}" ;;
  tidy) tidy "${@:2}" ;;
  *) fail "$usage" ;;
esac
