#!/usr/bin/env bash
# Compares the program with DeepSpeed, torch and TensorBoard's reader: scripts/test_peers.sh [ARGUMENT OF PYTEST...].
# Needs build/bin/sluice (scripts/build.sh). Makes an environment with deepspeed and tensorboard, and the torch of .venv, in
# .cache/peers-venv, once. SLUICE names another program.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

packages=(deepspeed==0.19.8 tensorboard==2.20.0 pytest==8.3.3)
venv="$repo/.cache/peers-venv"
python="$venv/bin/python"
log="$repo/.cache/peers-venv.log"
[[ -x "${SLUICE:-build/bin/sluice}" ]] || fail "${SLUICE:-build/bin/sluice} is not built; run scripts/build.sh"
[[ -x .venv/bin/python ]] || fail "there is no .venv/bin/python; run scripts/setup.sh"
wanted="${packages[*]} $repo $(.venv/bin/python --version)"
if [[ "$(cat "$venv/.packages" 2>/dev/null)" != "$wanted" ]]; then
  mkdir -p "$repo/.cache"
  .venv/bin/python -m venv --clear --without-pip "$venv" >"$log" 2>&1 || explain_failure "$log" "making $venv"
  # pip and torch are found in .venv, but what is installed goes into the new environment.
  site_packages='import sysconfig; print(sysconfig.get_path("purelib"))'
  .venv/bin/python -c "$site_packages" >"$("$python" -c "$site_packages")/project.pth"
  "$python" -m pip install --disable-pip-version-check -q "${packages[@]}" >"$log" 2>&1 ||
    explain_failure "$log" "installing ${packages[*]}"
  echo "$wanted" >"$venv/.packages"
fi
# DeepSpeed is imported for its schedules only: no operator is built, and no GPU is asked for.
exec env DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES= PYTHONPATH="$repo/tests/peers" \
  timeout 900 "$python" -m pytest -q tests/peers "$@"
