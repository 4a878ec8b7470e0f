#!/usr/bin/env bash
# Builds: scripts/build.sh [PRESET [TARGET...]] (release by default, into build/; the presets are in CMakePresets.json).
# Without targets everything is built.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset="${1:-release}"
if [[ "$preset" == -* ]]; then
  fail "usage: scripts/build.sh [PRESET [TARGET...]]; presets: $(grep -oP '"configurePreset": "\K[a-z0-9-]+' CMakePresets.json | sort -u | xargs)"
fi
for tool in cmake ninja c++; do
  command -v "$tool" >/dev/null || fail "$tool is not installed; run scripts/setup.sh"
done

cmake --preset "$preset"
targets=("${@:2}")
cmake --build --preset "$preset" --parallel "$(build_jobs)" ${targets[@]:+--target "${targets[@]}"}
