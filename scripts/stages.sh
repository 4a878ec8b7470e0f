# shellcheck shell=bash
# Stages of a long check, a summary of them and of the tests that were skipped; sourced after lib.sh, not run.

summary=()
skips=()
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

# Runs the tests of a preset and notes which were skipped: run_tests PRESET [ARGUMENT OF CTEST...].
run_tests() {
  local preset="$1" results="$repo/.cache/test-results/$1" result=0
  shift
  rm -rf "$results"
  mkdir -p "$results/gtest"
  GTEST_OUTPUT="xml:$results/gtest/" ctest --preset "$preset" --parallel "$(nproc)" --no-tests=error \
    --output-junit "$results/ctest.xml" "$@" || result=1
  skips+=("$(scripts/skipped_tests.py "$preset" "$results" "$(build_folder "$preset")" 2>&1)") || result=1
  return "$result"
}

# Builds a preset and runs its tests, in two stages: build_and_test PRESET WHAT [ARGUMENT OF CTEST...].
build_and_test() {
  local preset="$1" what="$2"
  shift 2
  stage "build ($what)" scripts/build.sh "$preset" && stage "tests ($what)" run_tests "$preset" "$@"
}

# Prints the summary; fails if a stage failed.
finish() {
  printf '\n== skipped tests\n'
  if ((${#skips[@]} > 0)); then printf '%s\n' "${skips[@]}"; else say "no tests were run"; fi
  printf '\n== summary\n'
  printf '%s\n' "${summary[@]}"
  printf '%-28s %-7s %s\n' "all" "$([[ "$failed" == no ]] && echo passed || echo FAILED)" "$(duration "$SECONDS")"
  [[ "$failed" == no ]]
}
