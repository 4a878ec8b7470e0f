#!/usr/bin/env bash
# Builds with a sanitizer and runs the tests: scripts/sanitize.sh KIND [ARGUMENT OF CTEST...], for example
# scripts/sanitize.sh thread -R nvme. Kinds:
#   thread         ThreadSanitizer with plain threads: base, nvme, offload, zero
#   address        AddressSanitizer and UndefinedBehaviorSanitizer: everything that needs no LibTorch
#   address-torch  the same for engine/train with LibTorch, whose own library is not instrumented
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "${1:-}" in
  thread) preset=tsan ;;
  address) preset=asan ;;
  address-torch) preset=asan-torch ;;
  *) fail "usage: scripts/sanitize.sh thread|address|address-torch [ARGUMENT OF CTEST...]" ;;
esac

build_and_test "$preset" "$preset" "${@:2}" || true
finish
