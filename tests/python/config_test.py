"""sluice.config: the verdicts of `sluice config check`."""

from __future__ import annotations

import base64
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import sluice
from conftest import CONFIG, Program

BROKEN = """{
  "train_micro_batch_size_per_gpu": 0,
  "gradient_accumulation_steps": 2,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
  "zero_optimization": {"stage": 7},
  "sluice": {"durabilty": "power"}
}
"""


def test_values_and_notes_are_those_of_the_program(config_file: Path, program: Program) -> None:
    config = sluice.config.load(config_file)
    shown = program.json("config", "check", str(config_file))
    assert config.values == shown["values"]
    assert config.notes == shown["notes"]
    assert config.values["train_batch_size"] == 6
    assert config.values["optimizer.params.betas"] == [0.9, 0.95]


def test_a_dict_resolves_to_the_values_of_its_file(config_file: Path) -> None:
    assert sluice.config.load(CONFIG).values == sluice.config.load(str(config_file)).values


def test_a_note_of_a_mapped_key_is_there() -> None:
    config = sluice.config.load({**CONFIG, "zero_optimization": {"stage": 3, "overlap_comm": True}})
    assert any("overlap_comm" in note for note in config.notes), config.notes


def test_every_mistake_of_a_file_is_a_problem_with_its_place(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "broken.json"
    path.write_text(BROKEN)
    with pytest.raises(sluice.config.ConfigError) as caught:
        sluice.config.load(path)
    error = caught.value
    assert isinstance(error, ValueError)
    assert [(p.line, p.key_path) for p in error.problems] == [
        (2, "train_micro_batch_size_per_gpu"),
        (5, "zero_optimization.stage"),
        (6, "sluice.durabilty"),
    ]
    assert "durability" in error.problems[2].message  # the nearest key
    assert error.problems == sluice.config.problems(path)
    # The program says the same, and ends with 2.
    said = program.run("config", "check", str(path))
    assert said.returncode == 2
    for line in str(error).splitlines():
        assert line in said.stderr


def test_the_problems_of_a_dict_have_no_lines() -> None:
    with pytest.raises(sluice.config.ConfigError) as caught:
        sluice.config.load(json.loads(BROKEN))
    assert {(p.line, p.column) for p in caught.value.problems} == {(0, 0)}
    assert [p.key_path for p in caught.value.problems][1] == "zero_optimization.stage"
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("config: zero_optimization.stage: ")
    assert lines[-1] == "3 problems in config"


def test_a_config_error_survives_pickling() -> None:
    with pytest.raises(sluice.config.ConfigError) as caught:
        sluice.config.load(json.loads(BROKEN))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.problems) == (str(caught.value), caught.value.problems)


def test_a_correct_configuration_has_no_problems() -> None:
    assert sluice.config.problems(CONFIG) == []


def test_a_missing_file_is_file_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        sluice.config.load("no/such/file.json")


def test_a_dict_that_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        sluice.config.load({"train_batch_size": object()})


def test_a_number_of_a_dict_that_is_not_finite_is_a_problem_with_its_key() -> None:
    broken = {**CONFIG, "gradient_clipping": math.nan, "optimizer": {"type": "AdamW", "params": {"lr": math.inf}}}
    problems = sluice.config.problems(broken)
    assert [(problem.key_path, problem.message) for problem in problems] == [
        ("optimizer.params.lr", "expected a finite number, found inf"),
        ("gradient_clipping", "expected a finite number, found nan"),
    ]
    with pytest.raises(sluice.config.ConfigError, match="config: gradient_clipping: expected a finite number, found nan\n2 problems"):
        sluice.config.load(broken)


def test_paths_in_a_dict_are_their_strings(tmp_path: Path) -> None:
    offload = {"device": "nvme", "nvme_path": tmp_path}
    config = sluice.config.load({**CONFIG, "zero_optimization": {"stage": 3, "offload_optimizer": offload}})
    assert config.values["zero_optimization.offload_optimizer.nvme_path"] == str(tmp_path)


@pytest.mark.parametrize("source", [None, 5, [1], b"ds.json"])
def test_a_source_of_another_type_is_a_type_error(source: Any, model_file: Path) -> None:
    for read in (sluice.config.load, sluice.config.problems, sluice.machine_facts, lambda source: sluice.plan(model_file, source)):
        with pytest.raises(TypeError, match="the configuration is .*: expected a path, a dict or a sluice.config.Config"):
            read(source)
    with pytest.raises(TypeError, match="model is .*: expected a torch.nn.Module, or the path of a config.json"):
        sluice.plan(source, CONFIG)


@pytest.mark.parametrize(("text", "message"), [("null", "expected a JSON object"), ("[" * 100_000, "nested deeper than 64")])
def test_a_file_of_no_object_is_a_problem(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert message in sluice.config.problems(path)[0].message


def test_the_batch_is_checked_for_the_ranks() -> None:
    batch = {**CONFIG, "train_batch_size": 6}
    assert sluice.config.problems(batch) == []
    assert [p.key_path for p in sluice.config.problems(batch, world_size=2)] == ["train_batch_size"]
    with pytest.raises(ValueError, match="a world size of 0"):
        sluice.config.load(CONFIG, world_size=0)


def test_a_tuned_file_is_over_the_configuration(config_file: Path, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.json"
    tuned.write_text('{"aio": {"block_size": 1048576}}')
    assert sluice.config.load(config_file, tuned=[tuned]).values["aio.block_size"] == 1048576
    tuned.write_text('{"aio": {"blok_size": 17}}')
    with pytest.raises(sluice.config.ConfigError, match="tuned.json:1:"):
        sluice.config.load(config_file, tuned=[tuned])
    with pytest.raises(ValueError, match="put their keys into the dict"):
        sluice.config.load(CONFIG, tuned=[tuned])


def test_a_text_in_base64_stands_in_place_of_a_file(config_file: Path) -> None:
    text = base64.urlsafe_b64encode(config_file.read_bytes()).decode()
    assert sluice.config.load(text).values == sluice.config.load(config_file).values
    with pytest.raises(sluice.config.ConfigError, match="^base64:1:2: train_batch_size: "):
        sluice.config.load(base64.urlsafe_b64encode(b'{"train_batch_size": 0}').decode())


@pytest.mark.parametrize("before", [b"// hello\n", b"/* x\n{ */ # y\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n// x\n"], ids=repr)
def test_such_a_text_may_begin_with_comments_and_a_mark(before: bytes) -> None:
    text = base64.urlsafe_b64encode(before + json.dumps(CONFIG).encode()).decode()
    assert sluice.config.load(text).values == sluice.config.load(CONFIG).values
    broken = base64.urlsafe_b64encode(before + b'\n{"train_batch_size": 0}').decode()
    assert [p.line for p in sluice.config.problems(broken)] == [len((before + b"\n").splitlines()) + 1]


@pytest.mark.parametrize("spaces", range(3))
def test_base64_may_lack_its_padding_and_end_in_a_newline(spaces: int) -> None:
    text = json.dumps(CONFIG).encode() + b" " * spaces
    for encode in (base64.urlsafe_b64encode, base64.b64encode):
        digits = encode(text).decode()
        for given in (digits + "\n", digits.rstrip("="), digits.rstrip("=") + "\r\n"):
            assert sluice.config.load(given).values == sluice.config.load(CONFIG).values


def test_a_string_that_is_neither_a_file_nor_base64_is_one_clear_line() -> None:
    cases = {
        json.dumps(CONFIG): r"is neither a file nor .*: pass a JSON text as a dict: json.loads",
        "x" * 5000: r"'x{120}'\.\.\. \(5000 characters\) is neither a file nor .*: expected a path",
        base64.urlsafe_b64encode(b"[1]" * 500).decode(): "is neither a file nor a JSON object",
        "ds\0.json": "is neither a file nor",
    }
    for source, message in cases.items():
        with pytest.raises(ValueError, match=message) as caught:
            sluice.config.load(source)
        assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)
    assert len(repr(sluice.config.load(base64.urlsafe_b64encode(json.dumps(CONFIG).encode()).decode()))) < 300


def test_a_path_that_might_be_base64_and_is_absent_is_an_absent_file() -> None:
    with pytest.raises(FileNotFoundError, match="ds_configs12"):
        sluice.config.load("ds_configs12")
