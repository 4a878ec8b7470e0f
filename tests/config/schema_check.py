"""Compares `sluice config schema` with the parser: damaged files get equal verdicts from both.

    schema_check.py PROGRAM CORPUS [FILES]

CORPUS is a folder of configurations; FILES (default 500) of them are damaged at random, with a fixed seed. The parser is given
flags for each open "auto", which is valid in the schema. Files whose only mistakes are of the kinds that docs/config.md
names as beyond the schema are left out and counted. Needs PyPI's jsonschema.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema

SEED = 20260728
FLAGS = ["--steps", "1000"]
# Where the value itself is "auto", a flag would replace other values too; --set comes last.
BEYOND = (
    "must be micro batch x accumulation steps x ranks",
    "did you mean",  # at the top level only, see beyond()
    "it belongs",
    "must divide gradient_accumulation_steps",
    "shares a directory with",
    "a directory is named twice",
    "is the nvme_path of the run too",
    " directories in nvme_path",
    "above the scale that the run begins with",
    "deprecated, and ",
    "the same key as",
    "a group's rate follows the schedule",
    ": give optimizer.params.momentum a value above 0",
    "must be above 0, since optimizer.params.momentum is",
    "the train batch would be more than",
    '"auto" is filled in by the Hugging Face Trainer',
)
VALUES = [
    True, False, None, 0, 1, 2, 3, -1, 0.5, 1.5, 7, 4096, 1e9, 1e19, "x", "", "auto", "7", "1.5", "none", "cpu", "nvme", "fp16", "AdamW",
    "WarmupLR", "WarmupDecayLR", "Lamb", "64MiB", "80%", "/d", [], [0.9, 0.99], [1], {}, {"enabled": True}, {"enabled": False},
]  # fmt: skip


def paths_of(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [path] * bool(path) + [p for key, member in value.items() for p in paths_of(member, (*path, key))]


def put(config: dict, path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[path[-1]] = value


def remove(config: dict, path: tuple[str, ...]) -> None:
    for name in path[:-1]:
        config = config[name]
    del config[path[-1]]


def damage(config: dict, keys: list[tuple[str, ...]], dice: random.Random) -> dict:
    config = copy.deepcopy(config)
    for _ in range(dice.choice([1, 1, 1, 2])):
        own = paths_of(config)
        kind = dice.randrange(6)
        if kind == 0 and own:
            remove(config, dice.choice(own))
        elif kind == 1:
            put(config, dice.choice(own or keys), dice.choice(VALUES))
        elif kind == 2:
            nested = [path for path in keys if len(path) > 1]
            path = dice.choice(nested)
            put(config, (*path[:-1], path[-1] + dice.choice(["s", "_x", "2"])), dice.choice(VALUES))
        elif kind == 3 and dice.random() < 0.3:
            put(config, (dice.choice(["cuda_visible_devices", "_comment", "local_rank"]),), dice.choice(VALUES))
        else:
            put(config, dice.choice(keys), dice.choice(VALUES))
    return config


def beyond(message: str) -> bool:
    """Whether a line of the parser names a mistake that the schema cannot see."""
    key = message.split(": ")[1] if message.count(": ") > 1 else ""
    if "unknown key" in message:
        return "." not in key
    return any(words in message for words in BEYOND if words not in ("did you mean", "it belongs"))


def parser_verdicts(program: str, files: list[Path]) -> list[list[str]]:
    """The mistakes of each file."""
    verdicts = []
    for begin in range(0, len(files), 100):
        part = [str(file) for file in files[begin : begin + 100]]
        run = subprocess.run([program, "config", "check", *part, *FLAGS, "--json"], capture_output=True, text=True)
        answers = json.loads(run.stdout.splitlines()[-1])["files"]
        assert len(answers) == len(part), "a file went over another"
        verdicts += [[line for line in a.get("error", "").splitlines() if " problem" not in line] for a in answers]
    return verdicts


def main() -> int:
    program, corpus = sys.argv[1], Path(sys.argv[2])
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 500
    dice = random.Random(SEED)
    schema = json.loads(subprocess.run([program, "config", "schema"], capture_output=True, text=True, check=True).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    table = json.loads(subprocess.run([program, "config", "keys", "--json"], capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    keys = [tuple(row["path"].split(".")) for row in table["config"]]
    bases = []
    for file in sorted(corpus.glob("*.json")):
        text = "\n".join(line for line in file.read_text().splitlines() if not line.lstrip().startswith("//"))
        try:
            bases.append(json.loads(text))
        except json.JSONDecodeError:
            continue  # keys without quotes
    # A file that is wrong before would hide what the damage does.
    bases = [base for base in bases if validator.is_valid(base)]
    configs = [damage(dice.choice(bases), keys, dice) for _ in range(wanted * 2)]
    # Two sections alone are a file over another; the corpus has none.
    configs = [config for config in configs if set(config) - {"aio", "sluice"}]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.json" for number in range(len(configs))]
        for file, config in zip(files, configs):
            file.write_text(json.dumps(config))
        verdicts = parser_verdicts(program, files)
    compared = left_out = valid = differing = 0
    for config, mistakes in zip(configs, verdicts):
        if compared == wanted:
            break
        if mistakes and all(beyond(line) for line in mistakes):
            left_out += 1
            continue
        compared += 1
        by_schema = validator.is_valid(config)
        valid += not mistakes
        if by_schema != (not mistakes):
            differing += 1
            error = jsonschema.exceptions.best_match(validator.iter_errors(config))
            print(f"parser {mistakes or 'accepts'}\nschema {str(error)[:300] if error else 'accepts'}\n{json.dumps(config)}\n")
    print(f"{compared} files compared, {valid} valid and {compared - valid} not, {left_out} beyond the schema left out: {differing} verdicts differ")
    return 0 if differing == 0 and compared == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
