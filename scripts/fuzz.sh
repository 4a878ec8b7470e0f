#!/usr/bin/env bash
# Fuzzes the readers of files with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer: scripts/fuzz.sh [SECONDS] [TARGET...]
# SECONDS are of each target (default 60); targets are the files of tests/fuzz/targets. An input that crashes, takes 5 s, or
# makes an allocation of more than 1 MiB is kept in .cache/fuzz. `build/bin/TARGET_fuzz FILE` reads it again; add it to
# tests/fuzz/corpus with the change that mends it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seconds="${1:-60}"
[[ "$seconds" =~ ^[0-9]+$ ]] || fail "usage: scripts/fuzz.sh [SECONDS] [TARGET...]"
command -v clang++-14 >/dev/null || fail "clang++-14 is not installed; run scripts/setup.sh"
targets=("${@:2}")
if ((${#targets[@]} == 0)); then
  for source in tests/fuzz/targets/*.cpp; do targets+=("$(basename "$source" .cpp)"); done
fi

# Inputs of up to 64 KiB: the limit of one allocation, 1 MiB, is the smallest that libFuzzer has.
fuzz() {
  local target="$1" found=".cache/fuzz/$1"
  mkdir -p "$found"
  SLUICE_TEST_DIR="$(df --output=target /dev/shm >/dev/null 2>&1 && echo /dev/shm || echo /tmp)" \
    "build-fuzz/bin/${target}_fuzz" -max_total_time="$seconds" -max_len=65536 -timeout=5 -malloc_limit_mb=1 \
    -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$target"
}

stage "build (libFuzzer)" scripts/build.sh fuzz || { finish || exit 1; }
for target in "${targets[@]}"; do stage "fuzz $target" fuzz "$target" || true; done
finish
