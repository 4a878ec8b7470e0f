"""sluice.plan: the plans of `sluice plan`, as data."""

from __future__ import annotations

import copy
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sluice
from conftest import CONFIG, MODEL, Program

BIG = {**MODEL, "n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257, "n_positions": 1024}


def machine(**facts: object) -> dict[str, object]:
    return {"total_memory_bytes": 64 << 30, "available_memory_bytes": 60 << 30, "cores": 8, **facts}


def test_a_plan_is_that_of_the_program(config_file: Path, model_file: Path, program: Program) -> None:
    made = sluice.plan(model_file, config_file)
    (config_file.parent / "none.json").touch()
    line = ["plan", "--config", str(config_file), "--model", str(model_file), "--rates", str(config_file.parent / "none.json")]
    assert made.data == program.json(*line)
    table = program.run(*line)
    assert made.table in table.stdout
    assert str(made) == table.stdout.rstrip()


def test_a_file_without_rates_is_refused(config_file: Path, model_file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        sluice.plan(model_file, config_file, rates=tmp_path / "none.json")
    with pytest.raises(ValueError, match="holds no rates"):
        sluice.plan(model_file, config_file, rates=model_file)


def test_dicts_plan_as_files(config_file: Path, model_file: Path) -> None:
    assert sluice.plan(MODEL, CONFIG).data == sluice.plan(model_file, sluice.config.load(config_file)).data


def test_the_numbers_are_bytes() -> None:
    made = sluice.plan(MODEL, CONFIG)
    width, blocks = MODEL["n_embd"], MODEL["n_layer"]
    parameters = (256 + 64) * width + blocks * (12 * width * width + 13 * width) + 2 * width
    assert made.data["parameters"] == parameters
    assert made.data["state_bytes"] == 16 * parameters
    assert made.data["budget_bytes"] == {"device": 64 << 20, "host": 256 << 20}
    assert made.data["planned_bytes"]["host"] == sum(row["host"] for row in made.data["rows"])


def test_the_facts_of_a_machine_decide() -> None:
    config = copy.deepcopy(CONFIG)
    del config["sluice"]["host_bytes"], config["sluice"]["device_bytes"]
    fits = sluice.plan(BIG, config, machine=machine())
    assert fits.data["threads"]["compute"] == 8
    with pytest.raises(sluice.DoesNotFit) as caught:
        sluice.plan(BIG, config, machine=machine(total_memory_bytes=8 << 30, available_memory_bytes=7 << 30))
    assert "short by" in str(caught.value)


def test_a_gpu_among_the_facts_computes() -> None:
    config = {**CONFIG, "sluice": {}}
    gpu = {"name": "NVIDIA H100", "total_bytes": 80 << 30, "free_bytes": 78 << 30}
    made = sluice.plan(BIG, config, machine=machine(gpu=gpu))
    assert made.data["computes_on"] == "cuda:0 (NVIDIA H100)"


def test_resident_plans_have_no_budgets() -> None:
    assert "budget_bytes" not in sluice.plan(MODEL, CONFIG, placement="resident").data


def test_the_facts_of_this_machine() -> None:
    facts = sluice.machine_facts(CONFIG)
    assert facts["cores"] >= 1
    assert 0 < facts["available_memory_bytes"] <= facts["total_memory_bytes"]
    assert facts["gpu"] is None
    assert sluice.plan(MODEL, CONFIG, machine=facts).data["planned_bytes"] == sluice.plan(MODEL, CONFIG).data["planned_bytes"]


def test_disk_facts_of_a_machine(tmp_path: Path) -> None:
    swap = {"device": "nvme", "nvme_path": str(tmp_path)}
    config = {**CONFIG, "zero_optimization": {"stage": 3, "offload_optimizer": swap}}
    facts = sluice.machine_facts(config)
    assert facts["free_disk_bytes"][str(tmp_path)] > 0
    with pytest.raises(sluice.DoesNotFit, match="disk"):
        sluice.plan(MODEL, config, machine={"free_disk_bytes": {tmp_path: 1 << 20}})


def test_mistakes_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no fact 'ram'; there are: total_memory_bytes"):
        sluice.plan(MODEL, CONFIG, machine={"ram": 1})
    with pytest.raises(TypeError, match=r"machine\['cores'\] is of class str: expected a whole number"):
        sluice.plan(MODEL, CONFIG, machine={"cores": "all"})
    with pytest.raises(ValueError, match=r"machine\['cores'\] is 0: expected at least 1"):
        sluice.plan(MODEL, CONFIG, machine={"cores": 0})
    with pytest.raises(ValueError, match=r"machine\['total_memory_bytes'\] is -1: expected a number from 0 to 2\*\*64 - 1"):
        sluice.plan(MODEL, CONFIG, machine={"total_memory_bytes": -1})
    with pytest.raises(ValueError, match="is 99, more than total_memory_bytes, 98"):
        sluice.plan(MODEL, CONFIG, machine={"total_memory_bytes": 98, "available_memory_bytes": 99})
    for gpu, message in [
        ({}, "'name' is missing; it has index"),
        ({"name": "H100", "total_bytes": 2, "free_bytes": 1, "cores": 1}, "there is no 'cores'"),
        ({"name": "H100", "total_bytes": 1, "free_bytes": 2}, "free_bytes is 2, more than total_bytes, 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            sluice.plan(MODEL, CONFIG, machine={"gpu": gpu})
    with pytest.raises(ValueError, match="the model cannot be written as JSON: n_embd is of class object"):
        sluice.plan({**MODEL, "n_embd": object()}, CONFIG)
    with pytest.raises(ValueError, match='placement is "gpu"; it must be "configured" or "resident"'):
        sluice.plan(MODEL, CONFIG, placement="gpu")
    with pytest.raises(FileNotFoundError):
        sluice.plan(tmp_path / "absent.json", CONFIG)
    with pytest.raises(sluice.config.ConfigError, match="n_embd"):
        sluice.plan({**MODEL, "n_embd": 127}, CONFIG)
    with pytest.raises(sluice.config.ConfigError, match="stage"):
        sluice.plan(MODEL, {**CONFIG, "zero_optimization": {"stage": 9}})


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_the_table() -> None:
    made = sluice.plan(MODEL, CONFIG)
    cells = Cells(made._repr_html_())
    assert cells.open == []
    for row in made.data["rows"]:
        assert row["component"] in cells.texts
    assert "64.0 MiB" in cells.texts  # the budget
    assert made.choices[0] in cells.texts
    assert f"{made.data['parameters']} parameters" in repr(made)
