#!/usr/bin/env bash
# Compares the JSON Schema of the configuration with the parser, on 500 damaged files: scripts/config_schema.sh.
# Needs build/bin/sluice (scripts/build.sh). Makes an environment with PyPI's jsonschema in .cache/schema-venv, once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 0)); then fail "usage: scripts/config_schema.sh (it takes no arguments)"; fi

program="$repo/build/bin/sluice"
[[ -x "$program" ]] || fail "$program is not built; run scripts/build.sh"
venv="$repo/.cache/schema-venv"
python=python3
environment "$venv" jsonschema==4.23.0
exec "$venv/bin/python" "$repo/tests/config/schema_check.py" "$program" "$repo/tests/config/corpus"
