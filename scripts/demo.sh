#!/usr/bin/env bash
# The demonstration: trains a model whose states are several times larger than the memory budgets, on this machine,
# then shows what it learnt. scripts/demo.sh [TEXT_FILE]; without a file it trains on the C++ headers of LibTorch.
# SLUICE_DEMO_STEPS overrides the number of steps.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 1)) || [[ "${1:-}" == -* ]]; then fail "usage: scripts/demo.sh [TEXT_FILE]"; fi
text_file="${1:-}"
if [[ -n "$text_file" ]]; then
  [[ -f "$text_file" && -r "$text_file" ]] || fail "$text_file: there is no such file, or it cannot be read"
fi

held_out=0.05
eval_windows=256
out=build/demo
sluice=build/bin/sluice

scripts/setup.sh
scripts/build.sh release sluice sluice_train bigram
mkdir -p "$out"

# The text: the same bytes on every machine with this wheel, in an order that no locale changes.
if [[ -n "$text_file" ]]; then
  corpus="$text_file"
else
  corpus="$out/corpus.txt"
  find .venv/lib/python3*/site-packages/torch/include -name '*.h' -print0 | LC_ALL=C sort -z |
    xargs -0 cat >"$corpus"
fi

# The configuration of examples/demo, with this folder for the swap files; what an earlier demo left is removed.
swap="$repo/$out/swap"
rm -rf "$swap"
mkdir -p "$swap"
steps="${SLUICE_DEMO_STEPS:-$(grep -oP '"total_num_steps": *\K[0-9]+' examples/demo/ds_config.json)}"
escaped="$(printf '%s' "$swap" | sed 's/[&|\\]/\\&/g')"
sed -e "s|\"nvme_path\": \"swap\"|\"nvme_path\": \"$escaped\"|g" \
  -e "s|\"total_num_steps\": *[0-9]*|\"total_num_steps\": $steps|" \
  examples/demo/ds_config.json >"$out/ds_config.json"
cp examples/demo/model.json "$out/model.json"

say ""
say "training on $corpus ($(stat -c %s "$corpus" | sed ':a; s/\B[0-9]\{3\}\>/,&/; ta') bytes), the last 5 % held out"
say ""
"$sluice" train --config "$out/ds_config.json" --model "$out/model.json" --data "$corpus" \
  --eval-fraction "$held_out" --eval-windows "$eval_windows" --eval-every $(((steps + 3) / 4)) --steps "$steps" \
  --report "$out" --trace "$out/trace.json" --trace-steps $(((steps + 1) / 2))

"$sluice" report "$out"
"$sluice" export "$swap" --out "$out/weights.safetensors"

# A prompt from the held-out text: two lines and the beginning of a third, without what a terminal would obey.
size="$(stat -c %s "$corpus")"
prompt="$(dd if="$corpus" bs=4096 iflag=skip_bytes,count_bytes skip="$((size - size / 30))" count=4000 status=none |
  tr -d '\000\033' | cut -c1-160 | awk 'NR > 1 && NF > 2 && ++taken <= 3 {
    if (taken < 3) print; else printf "%s", substr($0, 1, length($0) * 2 / 3) }')"
[[ -n "$prompt" ]] || prompt="The "
say ""
say "a sample: after the mark, what the model makes of a prompt from the held-out text"
say "----"
printf '%s' "$prompt"
"$sluice" generate --model "$out/model.json" --weights "$out/weights.safetensors" --prompt "$prompt" \
  --max-new-tokens 300 --temperature 0.8 --json 2>/dev/null |
  python3 -c 'import json, sys; print(" >>>" + json.loads(sys.stdin.readlines()[-1])["text"])'
say "----"
say ""

# The run's report, said once more beside the baseline.
window_length="$(grep -oP '"n_positions": *\K[0-9]+' "$out/model.json")"
bigram="$(build/bin/bigram "$corpus" "$held_out" "$window_length" "$eval_windows")"
python3 - "$out/report.json" $bigram <<'PYTHON'
import json
import sys

report = json.load(open(sys.argv[1]))
mib = 1 << 20
budget, peak = report["budget_bytes"], report["peak_bytes"]
loss = report["eval_loss"]
here, everywhere = map(float, sys.argv[2:4])
print(f"held-out loss   {loss:.4f} nats per byte; counting pairs of bytes (bigram) gives {here:.4f} on the same windows,")
print(f"                {everywhere:.4f} on all of the held-out text")
print(f"training state  {report['state_bytes'] / mib:,.0f} MiB, "
      f"{report['state_bytes'] / (budget['device'] + budget['host']):.1f} times the budgets of device and host")
for tier in ("device", "host"):
    print(f"{tier + ' peak':15} {peak[tier] / mib:,.1f} MiB of {budget[tier] / mib:,.1f} MiB")
print(f"{'nvme':15} {peak['nvme'] / mib:,.1f} MiB")
print(f"speed           {report['tokens_per_second']:,.0f} tokens/s, bound by {report['bound_by']}")
PYTHON
say ""
say "your own text: scripts/demo.sh YOUR_TEXT; your own model too: $sluice nvme clean $out/swap --committed && $sluice train --config $out/ds_config.json --model YOUR_config.json --data YOUR_TEXT --steps N"
