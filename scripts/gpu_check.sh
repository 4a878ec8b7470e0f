#!/usr/bin/env bash
# Measures Sluice on a machine with a GPU and runs the tests that need one; needs no network and builds nothing.
# scripts/gpu_check.sh [--rehearse] OUT [ROW...], with the files of scripts/gpu_bundle.sh (.cache/gpu-bundle, or
# SLUICE_BUNDLE). Rows: 1 to 10 and tests; all of them by default, each with the time that it needs, up to 40 minutes. A row whose
# result is in OUT is not measured again. --rehearse: the same on this machine without a GPU, tiny; its figures say nothing.
# More: bench/gpu_rows.py --help, whose options it takes. The Python is SLUICE_PYTHON, or the first of python3 and
# .venv/bin/python that has torch.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

has_torch() { command -v "$1" >/dev/null && "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; }

python="${SLUICE_PYTHON:-}"
for candidate in python3 .venv/bin/python; do
  if [[ -z "$python" ]] && has_torch "$candidate"; then python="$candidate"; fi
done
[[ -n "$python" ]] || fail "neither python3 nor .venv/bin/python has torch, whose LibTorch the programs need; name one in SLUICE_PYTHON"
python="$(command -v "$python")"
[[ "$python" == /* ]] || python="$repo/$python"

if (($# == 0)); then fail "usage: scripts/gpu_check.sh [--rehearse] OUT [ROW...]"; fi
cd "$OLDPWD" # where OUT is meant from
exec "$python" "$repo/bench/gpu_rows.py" "$@"
