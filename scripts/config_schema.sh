#!/usr/bin/env bash
# Compares the JSON Schema of the configuration with the parser, on 500 damaged files: scripts/config_schema.sh.
# Needs build/bin/sluice (scripts/build.sh). Makes an environment with PyPI's jsonschema in .cache/schema-venv, once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if (($# > 0)); then fail "usage: scripts/config_schema.sh (it takes no arguments)"; fi

jsonschema_version=4.23.0
program="$repo/build/bin/sluice"
[[ -x "$program" ]] || fail "$program is not built; run scripts/build.sh"
venv="$repo/.cache/schema-venv"
mkdir -p "$repo/.cache"
if ! "$venv/bin/python" -c "import importlib.metadata as m; assert m.version('jsonschema') == '$jsonschema_version'" 2>/dev/null; then
  log="$repo/.cache/schema-venv.log"
  rm -rf "$venv"
  python3 -m venv "$venv" >"$log" 2>&1 || explain_failure "$log" "making $venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check "jsonschema==$jsonschema_version" >"$log" 2>&1 ||
    explain_failure "$log" "installing jsonschema $jsonschema_version"
fi
exec "$venv/bin/python" "$repo/tests/config/schema_check.py" "$program" "$repo/tests/config/corpus"
