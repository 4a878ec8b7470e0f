#!/usr/bin/env bash
# Formats the C++ sources in place; with --check only says what is not formatted, and fails.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "${1:-}" in
  "") mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) fail "unknown argument $1; usage: scripts/format.sh [--check]" ;;
esac
command -v clang-format-14 >/dev/null || fail "clang-format-14 is not installed (another version formats differently); run scripts/setup.sh"
git ls-files -z -- '*.cpp' '*.hpp' | xargs -0 --no-run-if-empty clang-format-14 "${mode[@]}"
