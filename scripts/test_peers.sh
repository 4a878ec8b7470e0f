#!/usr/bin/env bash
# Compares the program with DeepSpeed, torch and TensorBoard's reader: scripts/test_peers.sh [ARGUMENT OF PYTEST...].
# Needs build/bin/sluice (scripts/build.sh). Makes an environment with deepspeed and tensorboard, and the torch of .venv, in
# .cache/peers-venv, once. SLUICE names another program.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python=.venv/bin/python
[[ -x "${SLUICE:-build/bin/sluice}" ]] || fail "${SLUICE:-build/bin/sluice} is not built; run scripts/build.sh"
[[ -x "$python" ]] || fail "there is no $python; run scripts/setup.sh"
beside="$(site_packages "$repo/$python")"
environment "$repo/.cache/peers-venv" deepspeed==0.19.8 tensorboard==2.20.0 pytest==8.3.3
# DeepSpeed is imported for its schedules only: no operator is built, and no GPU is asked for.
exec env DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES= PYTHONPATH="$repo/tests/peers" \
  timeout 900 .cache/peers-venv/bin/python -m pytest -q tests/peers "$@"
