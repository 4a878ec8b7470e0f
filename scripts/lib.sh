# shellcheck shell=bash
# Shared by the scripts; sourced, not run. Sets repo (the root of the tree), which is also the working folder.
set -euo pipefail
# --help is the comment at the top of the script, which says what it does and how it is called. Before the working folder
# changes: $0 may be relative to it.
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  sed -n '2,/^[^#]/ { s/^# \{0,1\}//p }' "$0"
  exit 0
fi
repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$repo"

# With its default settings ccache stores no object that uses a precompiled header: the wheel would compile again all that
# includes LibTorch, after build/ did. Paths below the tree are hashed relative to it, so that build folders share objects.
# These variables take precedence over the file of ccache; variables that are already set stay.
export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}"
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$repo}"

say() { printf '%s\n' "$*"; }

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# One sentence on why a download, an installation or a build failed, from its log.
explain_failure() {
  local log="$1" what="$2"
  if grep -qiE 'no space left|enough free space|errno 28' "$log"; then
    fail "$what failed: the disk is full ($(df -h --output=avail,target "$repo" | tail -1 | xargs | tr ' ' ',') free); make room and run it again."
  elif grep -qiE 'temporary failure|could not resolve|name resolution|failed to fetch|unable to fetch|could not connect|connection (timed out|refused|reset)|network is unreachable|NewConnectionError|max retries' "$log"; then
    fail "$what failed: the server could not be reached; check the network or the proxy settings and run it again (log: $log)."
  elif grep -qiE 'could not get lock|is another process using it' "$log"; then
    fail "$what failed: another package installation is running; run it again when that is done."
  elif grep -qiE 'no matching distribution|could not find a version' "$log"; then
    fail "$what failed: the package index that pip is configured for does not have it, or cannot be reached (log: $log)."
  fi
  fail "$what failed; its log is $log."
}

# The folder of an interpreter's packages.
site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# A virtual environment of $python with these packages, made once: environment FOLDER PACKAGE... It sees the packages in the
# folder $beside too, if that is set.
environment() {
  local folder="$1" log="$1.log" packages=("${@:2}")
  local wanted="${packages[*]} $("$python" --version) ${beside:-}"
  if [[ "$(cat "$folder/.packages" 2>/dev/null)" == "$wanted" ]]; then return; fi
  rm -rf "$folder"
  mkdir -p "$(dirname "$folder")"
  "$python" -m venv "$folder" >"$log" 2>&1 || explain_failure "$log" "making the environment $folder"
  if [[ -n "${beside:-}" ]]; then
    echo "$beside" >"$(site_packages "$folder/bin/python")/beside.pth"
  fi
  "$folder/bin/python" -m pip install --disable-pip-version-check -q "${packages[@]}" >>"$log" 2>&1 ||
    explain_failure "$log" "installing ${packages[*]}"
  echo "$wanted" >"$folder/.packages"
}

# Compilers at once: one for each core, but none without 2 GiB of memory (a unit that includes LibTorch takes 1.5).
build_jobs() {
  local cores memory_kib by_memory
  cores="$(nproc)"
  memory_kib="$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)"
  by_memory=$((memory_kib / 2097152))
  if ((by_memory < 1)); then by_memory=1; fi
  if ((by_memory < cores)); then echo "$by_memory"; else echo "$cores"; fi
}

# "7m42s" of a number of seconds.
duration() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }

# Stages of a long check, a summary of them, and the tests that failed or were skipped.
summary=()
results_shown=()
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

# The folder that a preset builds into.
build_folder() { if [[ "$1" == ci || "$1" == release ]]; then echo build; else echo "build-$1"; fi; }

# Runs the tests of a preset and notes which failed or were skipped: run_tests PRESET [ARGUMENT OF CTEST...].
run_tests() {
  local preset="$1" results="$repo/.cache/test-results/$1" result=0
  shift
  rm -rf "$results"
  mkdir -p "$results/gtest"
  GTEST_OUTPUT="xml:$results/gtest/" ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error \
    --output-junit "$results/ctest.xml" "$@" || result=1
  results_shown+=("$(scripts/test_results.py "$preset" "$results" "$(build_folder "$preset")" 2>&1)") || result=1
  return "$result"
}

# The programs of a preset's long tests, by name.
long_tests() { { ctest --preset "$1" -N -L '^long$' || true; } | sed -n 's/^ *Test *#[0-9]*: //p' | xargs; }

# Runs the tests of the Python package and notes which failed or were skipped: run_python_tests [--short].
run_python_tests() {
  local results="$repo/.cache/test-results" result=0 part parts=(python python-torch)
  if [[ "${1:-}" != --short ]]; then parts+=(python-hf); fi
  scripts/test_python.sh "$@" "$results" || result=1
  for part in "${parts[@]}"; do
    results_shown+=("$(scripts/test_results.py "$part" "$results/$part" "$results/$part" 2>&1)") || result=1
  done
  return "$result"
}

# Builds a preset and runs its tests, in two stages: build_and_test PRESET WHAT [ARGUMENT OF CTEST...].
build_and_test() {
  local preset="$1" what="$2"
  shift 2
  stage "build ($what)" scripts/build.sh "$preset" && stage "tests ($what)" run_tests "$preset" "$@"
}

# Prints the summary, with the tests that failed and their last words; fails if a stage failed.
finish() {
  printf '\n== results of tests\n'
  if ((${#results_shown[@]} > 0)); then printf '%s\n' "${results_shown[@]}"; else say "no tests were run"; fi
  printf '\n== summary\n'
  printf '%s\n' "${summary[@]}"
  printf '%-28s %-7s %s\n' "all" "$([[ "$failed" == no ]] && echo passed || echo FAILED)" "$(duration "$SECONDS")"
  # The last lines of a log are read first, and at times alone.
  if ((${#results_shown[@]} > 0)); then
    printf '%s\n' "${results_shown[@]}" | awk '
      function show() { for (i = lines > 5 ? lines - 5 : 0; i < lines; ++i) print text[i] }
      /^  FAILED / { show(); lines = 0; sub(/^  FAILED /, "failed test: "); print; next }
      /^    \| / { text[lines++] = $0 }
      END { show() }'
  fi
  [[ "$failed" == no ]]
}
