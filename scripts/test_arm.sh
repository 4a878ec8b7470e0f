#!/usr/bin/env bash
# Builds cpu_adam's tests for 64-bit Arm with Debian's cross compiler, into build-arm64/, and runs them under qemu-user: its NEON
# kernel gives the bits of the scalar one. Installs nothing; what is missing it names.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 0)); then fail "usage: scripts/test_arm.sh (it takes no arguments)"; fi
libraries=(libhwy-dev libspdlog-dev libfmt-dev libxxhash-dev libjsoncpp-dev libgtest-dev libgmock-dev)
advice="run: dpkg --add-architecture arm64 && apt-get update && apt-get install g++-aarch64-linux-gnu qemu-user ${libraries[*]/%/:arm64}"
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$tool" >/dev/null || fail "$tool is not installed; $advice"
done
for library in "${libraries[@]}"; do
  dpkg-query -W "$library:arm64" >/dev/null 2>&1 || fail "$library:arm64 is not installed; $advice"
done

cmake --preset arm64
cmake --build --preset arm64 --parallel "$(build_jobs)" --target cpu_adam_test
# A test that starts itself anew cannot: the kernel does not know that qemu has to run it.
qemu-aarch64 build-arm64/bin/cpu_adam_test --gtest_brief=1 --gtest_filter='-*DeathTest*:HugeTile*'
