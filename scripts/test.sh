#!/usr/bin/env bash
# Sets up, builds and runs every test; then again, all that needs no LibTorch, with AddressSanitizer and
# UndefinedBehaviorSanitizer. scripts/test.sh [--quick]; --quick leaves the second part out.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

quick=no
for argument in "$@"; do
  case "$argument" in
    --quick) quick=yes ;;
    *) fail "unknown argument $argument; usage: scripts/test.sh [--quick]" ;;
  esac
done

summary=()
failed=no

# Runs a stage and notes how it went and how long it took; a failed one does not stop the others.
stage() {
  local name="$1" start=$SECONDS result=passed
  shift
  printf '\n== %s\n' "$name"
  "$@" || { result=FAILED; failed=yes; }
  summary+=("$(printf '%-28s %-7s %s' "$name" "$result" "$(duration $((SECONDS - start)))")")
  [[ "$result" == passed ]]
}

run_tests() { ctest --preset "$1" --parallel "$(nproc)" --no-tests=error; }

stage "setup" scripts/setup.sh || exit 1
if stage "build (ci)" scripts/build.sh ci; then
  stage "tests" run_tests ci || true
fi
if [[ "$quick" == no ]] && stage "build (asan, ubsan)" scripts/build.sh asan; then
  export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
  stage "tests (asan, ubsan)" run_tests asan || true
fi

printf '\n== summary\n'
printf '%s\n' "${summary[@]}"
printf '%-28s %-7s %s\n' "all" "$([[ "$failed" == no ]] && echo passed || echo FAILED)" "$(duration "$SECONDS")"
[[ "$failed" == no ]]
