#!/usr/bin/env bash
# Sets up, checks the structure and the format, builds and runs every test, and those of the Python package.
# Prints the tests that were skipped, and why.
# scripts/test.sh [--sanitizers]; --sanitizers: then again all that needs no LibTorch, with AddressSanitizer and
# UndefinedBehaviorSanitizer, and compiles that with clang's thread-safety analysis.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

sanitizers=no
for argument in "$@"; do
  case "$argument" in
    --sanitizers) sanitizers=yes ;;
    *) fail "unknown argument $argument; usage: scripts/test.sh [--sanitizers]" ;;
  esac
done

stage "setup" scripts/setup.sh || exit 1
stage "structure" scripts/check_structure.py || true
stage "format" scripts/format.sh --check || true
build_and_test ci ci || true
stage "python" run_python_tests || true
if [[ "$sanitizers" == yes ]]; then
  build_and_test asan "asan, ubsan" || true
  if command -v clang++-14 >/dev/null; then
    stage "thread safety (clang)" scripts/lint.sh thread-safety --quick || true
  else
    summary+=("$(printf '%-28s %-7s %s' "thread safety (clang)" skipped "this distribution has no clang-14")")
  fi
fi
finish
