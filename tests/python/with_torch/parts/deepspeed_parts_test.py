"""Parts by DeepSpeed's names that are small: schedulers, checkpointing, leaf modules, state dicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Block, Tied, batch, config, engine_of, loss_of, make, train, without_optimizer

import sluice
import sluice.engine
import sluice.runtime.activation_checkpointing.checkpointing
import sluice.runtime.zero.partition_parameters
import sluice.utils.groups
from conftest import names_without_docstring
from sluice.runtime import lr_schedules

# Rates and betas of DeepSpeed's own objects, as hexadecimal floats: bench/peers/deepspeed_schedules.py wrote them.
KNOWN = json.loads((Path(__file__).parent / "deepspeed_schedules.json").read_text())


def two_groups() -> torch.optim.Optimizer:
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    return torch.optim.AdamW([{"params": [first], "lr": 3e-4}, {"params": [second], "lr": 7e-5}], lr=1e-3)


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: f"{case['type']}-{case['number']}")
def test_schedulers_have_the_bits_of_deepspeeds(case: dict[str, Any]) -> None:
    optimizer = two_groups()
    schedule = getattr(lr_schedules, case["type"])(optimizer, **case["arguments"])
    assert len(case["steps"]) == 40
    for expected in case["steps"]:
        seen = [value for group in optimizer.param_groups for value in (group["lr"], group["betas"][0])]
        assert [value.hex() for value in seen] == expected
        schedule.step()
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    again = two_groups()
    loaded = getattr(lr_schedules, case["type"])(again, **case["arguments"])
    loaded.load_state_dict(schedule.state_dict())
    assert [group["lr"] for group in again.param_groups] == schedule.get_last_lr()


def test_schedulers_say_what_is_wrong() -> None:
    assert set(lr_schedules.VALID_LR_SCHEDULES) == {case["type"] for case in KNOWN}
    with pytest.raises(ValueError, match="warmup_num_steps is 0"):
        lr_schedules.WarmupLR(two_groups(), warmup_num_steps=0)
    with pytest.raises(ValueError, match="3 values for 2 parameter groups"):
        lr_schedules.WarmupLR(two_groups(), warmup_max_lr=[1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="no torch.optim.Optimizer"):
        lr_schedules.LRRangeTest(object())
    with pytest.raises(AssertionError, match="need to call step"):  # the Trainer looks for these words
        lr_schedules.OneCycle(two_groups(), 1e-4, 1e-3).get_last_lr()


def test_a_scheduler_object_drives_an_engine() -> None:
    model = make()
    keys = without_optimizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = lr_schedules.WarmupDecayLR(optimizer, total_num_steps=6, warmup_num_steps=2, warmup_max_lr=1e-2)
    engine = sluice.initialize(model=model, config=keys, optimizer=optimizer, lr_scheduler=schedule)[0]
    rates = []
    for step in range(5):
        train(engine, range(step, step + 1))
        rates.append(engine._last.learning_rate)
    # Logarithmic over two updates, then (total - done) / (total - warm-up) with done steps of the scheduler.
    assert rates == pytest.approx([0, 0, 1e-2, 1e-2, 7.5e-3])
    engine.destroy()


@pytest.mark.filterwarnings("error")
def test_a_scheduler_of_pytorch_does_not_warn_of_an_optimizer_that_never_steps() -> None:
    def half(update: int) -> float:
        return 0.5**update

    engine = sluice.initialize(
        model=make(), config=config(), lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, half)
    )[0]
    train(engine, range(3))
    assert engine.get_lr() == pytest.approx([1e-3 / 8])
    engine.destroy()


def test_checkpointed_functions_give_equal_gradients() -> None:
    class Checkpointed(Tied):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) + self.position[: ids.shape[1]]
            for block in self.blocks:
                x = sluice.checkpointing.checkpoint(block, x)
            return self.head(self.norm(x))

    sluice.checkpointing.configure(None, deepspeed_config={}, checkpoint_in_cpu=True)
    assert sluice.checkpointing.is_configured()
    engine, other = engine_of(make(Checkpointed)), engine_of(make())
    assert train(engine, range(3)) == train(other, range(3))
    engine.destroy()
    other.destroy()


def test_leaf_modules_are_gathered_as_one() -> None:
    class Pair(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(16), Block(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    model = torch.nn.ModuleDict({"pair": Pair(), "last": torch.nn.Linear(16, 1)})
    with pytest.raises(ValueError, match="no module of the model"):
        sluice.utils.set_z3_leaf_modules(model, [torch.nn.Conv2d])
    sluice.utils.set_z3_leaf_modules(model, [Block])
    sluice.utils.unset_z3_leaf_modules(model, ["Block"])
    assert sluice.utils.get_z3_leaf_modules(model) == []
    assert sluice.utils.set_z3_leaf_modules(model, ["Pair"]) == [model["pair"]]
    engine = engine_of(model)
    assert [unit.name for unit in engine._offloaded.units] == ["pair", "last"]
    engine.destroy()


def test_a_state_dict_of_the_model_has_the_values() -> None:
    engine = engine_of(make())
    train(engine, range(2))
    whole = engine.module_state_dict()
    seen = engine.module.state_dict()
    assert seen.keys() == whole.keys()
    assert all(torch.equal(seen[name], whole[name]) for name in whole)
    assert seen["head.weight"] is seen["embedding.weight"]  # tied: saved once
    part = engine.module.blocks[1].state_dict()
    assert torch.equal(part["up.weight"], whole["blocks.1.up.weight"])
    kept = engine.module.state_dict(keep_vars=True)
    assert all(kept[name] is parameter for name, parameter in engine.module.named_parameters())
    engine.destroy()


def test_an_engine_says_what_it_was_given() -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}
    keys = config(scheduler=warmup, gradient_accumulation_steps=3)
    engine = engine_of(make(), keys)
    assert engine.config == keys
    assert (engine.optimizer_name(), engine.optimizer_params()) == ("adamw", keys["optimizer"]["params"])
    assert (engine.scheduler_name(), engine.scheduler_params()) == ("WarmupLR", warmup["params"])
    assert engine.get_batch_info() == (6, 2, 3)
    assert [tuple(betas) for betas in engine.get_mom()] == [(0.9, 0.999)]
    assert engine.steps_per_print() is None
    engine.destroy()


def test_an_engine_without_an_optimizer_only_computes() -> None:
    keys = without_optimizer(scheduler={"type": "WarmupLR", "params": {}})
    engine = engine_of(make(), keys)
    ids, targets = batch(0)
    assert torch.equal(engine(ids), make()(ids))
    states = [row for row in engine.report()["plan"]["rows"] if row["component"] == "optimizer states"]
    assert all(row["host"] == row["device"] == row["nvme"] == 0 for row in states)
    with pytest.raises(ValueError, match='no optimizer, and no "optimizer" section'):
        engine.backward(loss_of(engine(ids), targets))
    engine.destroy()


def test_clones_for_saving_leave_the_storage_behind() -> None:
    from sluice.checkpoint.utils import clone_tensors_for_torch_save

    whole = torch.arange(100.0)
    made = clone_tensors_for_torch_save({"a": [whole[:3]], "b": (1, whole[3:5])})
    assert made["a"][0].untyped_storage().nbytes() == 12
    assert made["b"][0] == 1
    assert torch.equal(made["b"][1], whole[3:5])


def test_a_tied_weight_has_one_clone() -> None:
    """Transformers finds tied weights by their storage, and writes each once."""
    from sluice.checkpoint.utils import clone_tensors_for_torch_save

    engine = engine_of(make(blocks=1), config())
    whole = torch.ones(3)
    for state in (engine.module.state_dict(), {"embedding.weight": whole, "head.weight": whole}):
        made = clone_tensors_for_torch_save(state)
        assert made["head.weight"] is made["embedding.weight"]
        assert made["head.weight"].data_ptr() != state["head.weight"].data_ptr()
        assert len({value.data_ptr() for value in made.values()}) == len(made) - 1
    engine.destroy()


@pytest.mark.parametrize(
    "module",
    [
        sluice.accelerator,
        sluice.checkpoint.utils,
        sluice.checkpointing,
        sluice.comm,
        sluice.engine,
        lr_schedules,
        sluice.runtime.zero.partition_parameters,
        sluice.utils,
        sluice.utils.groups,
        sluice.zero,
    ],
    ids=lambda module: module.__name__,
)
def test_every_public_name_has_a_docstring(module: object) -> None:
    assert names_without_docstring(module) == []
