"""Loops of one's own, and plans of PyTorch modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, differences, engine_of, make, train, train_plain, without_optimizer

import sluice


@pytest.mark.parametrize("parts", [1, 3])
def test_a_loop_of_ones_own_follows_plain_pytorch(parts: int) -> None:
    plain = make()
    expected = train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01), range(10), parts, 1.0)
    model = make()
    optimizer = sluice.offload(model, config(gradient_clipping=1.0))
    mine = train_plain(model, optimizer, range(10), parts)
    assert mine[0] == expected[0]
    assert differences(mine, expected) < 1e-6
    assert optimizer.gradient_norm is not None
    weights = optimizer.model_state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-7)
    optimizer.close()


def test_a_clients_optimizer_and_scheduler_drive_the_steps() -> None:
    def course(offloaded: bool) -> list[float]:
        model = make()
        client = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(client, 2, 0.5)
        keys = without_optimizer()
        optimizer: Any = sluice.offload(model, keys, optimizer=client) if offloaded else client
        losses = []
        for step in range(6):
            losses += train_plain(model, optimizer, range(step, step + 1))
            schedule.step()
        if offloaded:
            optimizer.close()
        return losses

    assert differences(course(True), course(False)) < 2e-6


def test_an_interrupted_forward_is_cleaned_up_by_the_next() -> None:
    model = make()
    optimizer = sluice.offload(model, config())
    handle = model.blocks[1].register_forward_pre_hook(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(batch(0)[0])
    handle.remove()
    reference = make()
    expected = train_plain(reference, torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.01), range(3))
    assert differences(train_plain(model, optimizer, range(3)), expected) < 1e-6
    optimizer.close()


def _interrupt(module: torch.nn.Module, args: Any) -> None:
    raise KeyboardInterrupt


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    model = make()
    optimizer = sluice.offload(model, config())
    train_plain(model, optimizer, range(3))
    optimizer.save_checkpoint(str(tmp_path))
    expected = train_plain(model, optimizer, range(3, 6))
    optimizer.close()
    model = make()
    optimizer = sluice.offload(model, config())
    assert optimizer.load_checkpoint(str(tmp_path)) == optimizer.steps == 3
    assert train_plain(model, optimizer, range(3, 6)) == expected
    optimizer.close()


def test_a_state_dict_whose_moments_would_be_lost_is_refused(tmp_path: Path) -> None:
    plain = make()
    stepped = torch.optim.AdamW(plain.parameters())
    train_plain(plain, stepped, range(1))
    model = make()
    optimizer = sluice.offload(model, config())
    train_plain(model, optimizer, range(2))
    optimizer.param_groups[0]["lr"] = 0.5
    saved = optimizer.state_dict()
    optimizer.save_checkpoint(str(tmp_path))
    optimizer.close()
    other = sluice.offload(make(), config())
    for state in (stepped.state_dict(), saved):
        with pytest.raises(ValueError, match=r"save_checkpoint\(\) writes them"):
            other.load_state_dict(state)
    other.load_checkpoint(str(tmp_path))
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.5
    other.close()


def test_fp16_needs_the_engine() -> None:
    with pytest.raises(ValueError, match="loss scale"):
        sluice.offload(make(), config(fp16={"enabled": True}))


def test_a_plan_of_a_module_is_the_engines(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)
    with torch.device("meta"):
        unmade = make()
    plan = sluice.plan(unmade, keys)
    engine = engine_of(make(), keys)
    assert plan.data["planned_bytes"] == engine.report()["plan"]["planned_bytes"]
    assert "layers" not in plan.data  # of a model file alone
    assert "optimizer states" in str(plan)
    assert "<table>" in plan._repr_html_()
    with pytest.raises(ValueError, match=r"belongs to an engine, .*: engine.report\(\) has its plan"):
        sluice.plan(engine.module, keys)
    engine.destroy()
    with pytest.raises(ValueError, match="machine and rates"):
        sluice.plan(unmade, keys, machine={"cores": 2})
    assert sluice.plan(make(), keys, placement="resident").data["planned_bytes"]["nvme"] == 0


def test_a_line_of_each_second_step(caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    optimizer = sluice.offload(model, config(steps_per_print=2))
    with caplog.at_level("INFO", logger="sluice"):
        train_plain(model, optimizer, range(4))
    lines = [message for message in caplog.messages if message.startswith("step=")]
    assert [line.split(",")[0] for line in lines] == ["step=2", "step=4"]
    assert lines[1] == f"step=4, lr=[0.001], gradient norm={optimizer.gradient_norm:g}"
    optimizer.close()


def test_the_configurations_schedule_gives_the_rates(tmp_path: Path) -> None:
    keys = config(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}})
    engine = engine_of(make(), keys)
    expected = train(engine, range(6))
    engine.destroy()
    model = make()
    optimizer = sluice.offload(model, keys)
    mine = train_plain(model, optimizer, range(3))
    optimizer.save_checkpoint(str(tmp_path))
    train_plain(model, optimizer, range(3, 5))
    optimizer.load_checkpoint(str(tmp_path))
    mine += train_plain(model, optimizer, range(3, 6))
    assert mine == expected
    optimizer.close()
