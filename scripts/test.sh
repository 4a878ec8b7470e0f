#!/usr/bin/env bash
# Sets up, checks the structure and the format, builds everything, and runs the tests, those of the Python package too.
# Prints at its end which tests failed, with the end of their output, and which were skipped, and why.
# scripts/test.sh [--long] [--sanitizers]
#   --long        also the tests that take long (label or marker "long"): runs of the program that are killed, restarted
#                 or compared in many settings, and the Python tests with Hugging Face's libraries
#   --sanitizers  then again all that needs no LibTorch, with AddressSanitizer and UndefinedBehaviorSanitizer, and
#                 compiles that with clang's thread-safety analysis
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sanitizers=no ctest=(-LE '^long$') pytest=(--short)
for argument in "$@"; do
  case "$argument" in
    --long) ctest=() pytest=() ;;
    --sanitizers) sanitizers=yes ;;
    *) fail "unknown argument $argument; usage: scripts/test.sh [--long] [--sanitizers]" ;;
  esac
done

stage "setup" scripts/setup.sh || exit 1
stage "structure" scripts/check_structure.py || true
stage "format" scripts/format.sh --check || true
build_and_test ci ci "${ctest[@]}" || true
stage "python" run_python_tests "${pytest[@]}" || true
if ((${#ctest[@]} > 0)); then results_shown+=("long tests: $(long_tests ci), tests/python/with_hf and marked ones of with_torch; scripts/test.sh --long runs them"); fi
if [[ "$sanitizers" == yes ]]; then
  build_and_test asan "asan, ubsan" || true
  if command -v clang++-14 >/dev/null; then
    stage "thread safety (clang)" scripts/lint.sh thread-safety --quick || true
  else
    summary+=("$(printf '%-28s %-7s %s' "thread safety (clang)" skipped "this distribution has no clang-14")")
  fi
fi
finish
