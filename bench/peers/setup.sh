#!/usr/bin/env bash
# Makes bench/peers/.venv, in which the peers of the benchmarks run: DeepSpeed, with its operators async_io, cpu_adam and shm_comm built. Torch
# is not installed again, that of .venv is used. Does nothing when all of it is there.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

if (($# > 0)); then fail "usage: bench/peers/setup.sh (it takes no arguments)"; fi

deepspeed_version=0.19.8
peers="$repo/bench/peers/.venv"
log="$repo/.cache/setup-peers.log"

# Keeps what an interrupted run left, the operator's objects above all. In a tree that was moved torch is not found.
make_environment() {
  if "$peers/bin/python" -c 'import torch' 2>/dev/null; then return; fi
  "$repo/.venv/bin/python" -m venv --clear --without-pip "$peers" >"$log" 2>&1 || explain_failure "$log" "making bench/peers/.venv"
  # pip and torch are seen from here, but what is installed goes into bench/peers/.venv.
  local site_packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$repo/.venv/bin/python" -c "$site_packages" >"$("$peers/bin/python" -c "$site_packages")/project.pth"
  "$peers/bin/python" -m pip --version >/dev/null 2>&1 ||
    fail ".venv has no pip to install deepspeed with; remove .venv, install python3-venv, and run scripts/setup.sh."
}

install_deepspeed() {
  say "installing deepspeed $deepspeed_version into bench/peers/.venv"
  "$peers/bin/python" -m pip install --disable-pip-version-check "deepspeed==$deepspeed_version" >"$log" 2>&1 ||
    explain_failure "$log" "installing deepspeed $deepspeed_version"
}

# The scripts load the operators with the same settings. No GPU is used, so none of CUDA is needed to build.
build_operators() {
  say "building the operators async_io, cpu_adam and shm_comm of deepspeed (some minutes)"
  export DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES="" TORCH_EXTENSIONS_DIR="$peers/torch_extensions"
  # Left by a build that was interrupted: the next would wait for it for ever.
  rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
  MAX_JOBS="${MAX_JOBS:-$(build_jobs)}" "$peers/bin/python" -c \
    'from deepspeed.ops.op_builder.cpu import AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder
for builder in (AsyncIOBuilder, CPUAdamBuilder, ShareMemCommBuilder): builder().load()' >"$log" 2>&1 ||
    explain_failure "$log" "building the operators async_io, cpu_adam and shm_comm"
}

# The headers are there: the operators need them too.
build_direct_call() {
  local headers site_packages
  headers="$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
  site_packages="$("$peers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  "${CC:-cc}" -O2 -shared -fPIC -I "$headers" bench/peers/direct_call.c -o "$site_packages/direct_call.so" >"$log" 2>&1 ||
    explain_failure "$log" "building bench/peers/direct_call.c"
}

scripts/setup.sh

# Two runs at once would write the same environment.
exec 9>.cache/setup-peers.lock
if ! flock -n 9; then
  say "another bench/peers/setup.sh is at work here; waiting for it"
  flock 9
fi

# It names the tree's folder, because the environment is of no use elsewhere.
environment="deepspeed $deepspeed_version, async_io, cpu_adam, shm_comm, direct_call, $(cat .venv/.sluice-setup), $repo"
marker="$peers/.sluice-peers"
if [[ "$(cat "$marker" 2>/dev/null)" == "$environment" ]]; then exit 0; fi
make_environment
install_deepspeed
build_operators
build_direct_call
echo "$environment" >"$marker"
say "the peers are set up"
