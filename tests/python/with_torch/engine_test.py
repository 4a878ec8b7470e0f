"""Engines train what plain PyTorch trains, with equal bits on every tier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, differences, engine_of, loss_of, make, train, train_plain, without_optimizer

import sluice
from sluice.runtime.lr_schedules import OneCycle

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
}


def course(tier: str, folder: Path, **keys: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    engine = engine_of(make(), config(tier, folder, **keys))
    losses = train(engine, range(8))
    weights = engine.module_state_dict()
    engine.destroy()
    return losses, weights


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_tier_has_the_bits_of_the_device(precision: str, tmp_path: Path) -> None:
    keys = {"gradient_accumulation_steps": 2, "gradient_clipping": 1.0, **PRECISIONS[precision]}
    losses, weights = course("device", tmp_path, **keys)
    for tier in ("cpu", "nvme"):
        there, weights_there = course(tier, tmp_path, **keys)
        assert there == losses
        assert all(torch.equal(weights_there[name], weights[name]) for name in weights)


@pytest.mark.parametrize(("parts", "clip"), [(1, 0.0), (3, 1.0)])
def test_fp32_follows_plain_pytorch(parts: int, clip: float) -> None:
    model = make()
    plain = train_plain(model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01), range(50), parts, clip)
    engine = engine_of(make(), config(gradient_accumulation_steps=parts, gradient_clipping=clip))
    mine = train(engine, range(50))
    assert mine[0] == plain[0]
    assert differences(mine, plain) < 1e-6
    engine.destroy()


def test_a_clients_optimizer_gives_the_formula_and_its_scheduler_the_rates() -> None:
    def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.8, 0.95), weight_decay=0.1)

    model = make()
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    plain = []
    for step in range(20):
        plain += train_plain(model, optimizer, range(step, step + 1))
        schedule.step()

    other = make()
    optimizer = optimizer_of(other)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    keys = without_optimizer()
    engine, wrapped, _, returned = sluice.initialize(model=other, config=keys, optimizer=optimizer, lr_scheduler=schedule)
    assert returned is schedule
    assert wrapped.param_groups is optimizer.param_groups
    mine = train(engine, range(20))
    assert mine[0] == plain[0]
    assert differences(mine, plain) < 1e-6
    assert engine.get_lr() == [pytest.approx(0, abs=1e-12)]
    engine.destroy()


def test_the_configurations_schedule_gives_the_rates_of_the_steps() -> None:
    warmup = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "total_num_steps": 10, "warmup_max_lr": 1e-2}}
    engine = engine_of(make(), config(scheduler=warmup))
    rates = []
    for step in range(9):
        rates += engine.get_lr()
        train(engine, range(step, step + 1))
        assert engine._last.learning_rate == rates[-1]
    assert rates == [engine.loop.scheduled_rate(update + 1) for update in range(9)]
    assert rates[0] < max(rates) > rates[-1]
    engine.destroy()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_a_checkpoint_continues_with_equal_bits(tier: str, tmp_path: Path) -> None:
    drive, saved = tmp_path / "drive", tmp_path / "saved"
    for folder in (drive, saved):
        folder.mkdir()
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
    keys = config(tier, drive, scheduler=warmup)
    engine = engine_of(make(), keys)
    train(engine, range(5))
    assert engine.save_checkpoint(str(saved), client_state={"epoch": 3})
    assert (saved / "latest").read_text() == "global_step5"
    expected = train(engine, range(5, 9))
    rates = engine.get_lr()
    engine.destroy()

    engine = engine_of(make(), keys)
    folder, state = engine.load_checkpoint(str(saved))
    assert (folder, state) == (str(saved / "global_step5"), {"epoch": 3})
    assert (engine.global_steps, engine.micro_steps) == (5, 5)
    assert train(engine, range(5, 9)) == expected
    assert engine.get_lr() == rates
    engine.destroy()


def test_a_committed_state_of_the_drive_is_resumed_and_never_overwritten(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)
    engine = engine_of(make(), keys, resume=False)
    expected = train(engine, range(6))
    engine.destroy()
    with pytest.raises(sluice.StorageError, match="resume=True"):
        engine_of(make(), keys, resume=False)
    engine = engine_of(make(), keys, resume=True)
    assert engine.global_steps == 6
    engine.destroy()
    plain = engine_of(make(), config())
    assert train(plain, range(6)) == expected
    plain.destroy()


def test_a_scratch_drive_can_be_used_again(tmp_path: Path) -> None:
    first = course("nvme", tmp_path)
    assert course("nvme", tmp_path)[0] == first[0]


def test_boundaries_by_hand_take_any_number_of_micro_batches() -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    engine = engine_of(make(), config(gradient_accumulation_steps=4))
    for step, parts in enumerate((4, 2, 3)):
        for part in range(parts):
            ids, targets = batch(step * 100 + part)
            (loss_of(model(ids), targets) / 4).backward()
            engine.set_gradient_accumulation_boundary(part == parts - 1)
            engine.backward(loss_of(engine(ids), targets))
            if part == parts - 1:
                engine.step()
        optimizer.step()
        optimizer.zero_grad()
    assert engine.global_steps == 3
    weights = engine.module_state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-7)
    engine.destroy()


def test_an_overflow_in_fp16_skips_the_step_and_the_scheduler() -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
    engine = engine_of(make(), config(fp16={"enabled": True, "initial_scale_power": 32, "hysteresis": 1}, scheduler=warmup))
    rate, scale = engine.get_lr(), engine.cur_scale
    train(engine, range(1))
    assert (engine.skipped_steps, engine.global_steps) == (1, 1)
    assert engine.optimizer.overflow
    assert not engine.was_step_applied()
    assert engine.cur_scale == scale / 2
    assert engine.get_lr() == rate
    engine.destroy()


def test_train_batch_takes_a_step_from_an_iterator() -> None:
    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()

        def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return loss_of(self.inner(ids), targets)

    engine = engine_of(make(WithLoss), config(gradient_accumulation_steps=3))
    batches = [batch(number) for number in range(6)]
    losses = [engine.train_batch(iter(batches[:3])), engine.train_batch(iter(batches[3:]))]
    assert engine.global_steps == 2
    assert all(loss.isfinite() for loss in losses)
    with pytest.raises(ValueError, match="iterator"):
        engine.train_batch()
    engine.destroy()


@pytest.mark.parametrize("end", ["iterator", "loss"])
def test_train_batch_begins_anew_after_an_exception_within_a_step(end: str, caplog: pytest.LogCaptureFixture) -> None:
    def loss_or_none(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert targets.any()
        return loss_of(logits, targets)

    keys = config(gradient_accumulation_steps=3)
    plain, engine = engine_of(make(), keys), engine_of(make(), keys)
    bad = [] if end == "iterator" else [(batch(9)[0], torch.zeros_like(batch(9)[1]))]
    with pytest.raises(StopIteration if end == "iterator" else AssertionError):
        engine.train_batch(iter([batch(7), batch(8), *bad]), loss_or_none)
    assert "the gradients of this step so far are dropped" in caplog.text
    for begin in (0, 3):
        data = [batch(number) for number in range(begin, begin + 3)]
        assert engine.train_batch(iter(data), loss_of) == plain.train_batch(iter(data), loss_of)
        assert engine.get_global_grad_norm() == plain.get_global_grad_norm()
    assert engine.global_steps == 2
    plain.destroy()
    engine.destroy()


@pytest.mark.parametrize(("by_layer", "last"), [(False, "backward"), (True, "_train_layers")])
@pytest.mark.parametrize("count", [1, 2])
def test_train_batch_never_adds_to_gradients_before_it(count: int, by_layer: bool, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(torch.nn.Sequential(torch.nn.Linear(4, 1)), config(gradient_accumulation_steps=count))
    batches = [(torch.ones(2, 4), torch.zeros(2, 1))] * count

    def train_batch() -> float:
        engine.train_batch(iter(batches), torch.nn.functional.mse_loss, by_layer)
        return engine.get_global_grad_norm()

    def interrupted(*arguments: Any) -> None:
        getattr(type(engine), last)(engine, *arguments)
        raise KeyboardInterrupt

    engine.set_lr(0.0)
    norm = train_batch()
    engine.set_lr(-1.0)
    with pytest.raises(ValueError, match="learning_rate"):
        train_batch()
    engine.set_lr(0.0)
    with pytest.raises(ValueError, match=rf"one has begun, with {count} of {count} micro-batches: .* or with step\(\) alone"):
        train_batch()
    engine.step()
    assert engine.get_global_grad_norm() == norm
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, last, interrupted)
        train_batch()
    assert train_batch() == norm
    engine.destroy()


def test_train_batch_is_refused_inside_a_step() -> None:
    engine = engine_of(make(), config(gradient_accumulation_steps=3))
    data = [batch(number) for number in range(3)]
    for number in range(3):
        if number > 0:
            with pytest.raises(ValueError, match=rf"one has begun, with {number} of 3 micro-batches: end it with backward\(\) and step\(\)"):
                engine.train_batch(iter(data), loss_of)
        engine.backward(loss_of(engine(data[number][0]), data[number][1]))
        engine.step()
    engine.train_batch(iter(data), loss_of)
    engine.set_lr(-1.0)
    with pytest.raises(ValueError, match="learning_rate"):
        engine.train_batch(iter(data), loss_of)
    engine.set_lr(1e-3)
    with pytest.raises(ValueError, match=r"or with step\(\) alone where step\(\) has raised an error"):
        engine.train_batch(iter(data), loss_of)
    engine.step()
    engine.train_batch(iter(data), loss_of)
    assert engine.global_steps == 4
    engine.destroy()


def test_saved_weights_are_those_of_the_model(tmp_path: Path) -> None:
    engine = engine_of(make())
    train(engine, range(2))
    assert engine.save_16bit_model(str(tmp_path))
    weights = torch.load(tmp_path / "pytorch_model.bin")
    engine.destroy()
    other = make()
    other.load_state_dict(weights)
    again = engine_of(make())
    train(again, range(2))
    ids, _ = batch(9)
    with torch.no_grad():
        assert torch.equal(again(ids), other(ids))
    again.destroy()


def test_the_report_has_bytes_and_the_plan(tmp_path: Path) -> None:
    engine = engine_of(make(), config("nvme", tmp_path))
    train(engine, range(2))
    report = engine.report()
    assert report["nvme_written_bytes"] > 0
    assert report["plan"]["parameters"] == sum(p.numel() for p in make().parameters())
    json.dumps(report)
    engine.destroy()


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no configuration": ({"model": make()}, "configuration is missing"),
    "no model": ({"config": config()}, "needs a model"),
    "a model parallel unit": ({"model": make(), "config": config(), "mpu": object()}, "mpu"),
    "a model without parameters": ({"model": torch.nn.ReLU(), "config": config()}, "nothing to train"),
    "a model on the meta device": ({"model": torch.nn.Linear(2, 2, device="meta"), "config": config()}, "meta device"),
    "a mistake in the configuration": ({"model": make(), "config": config(gradient_clipping=-1)}, "gradient_clipping"),
    "an optimizer without a formula": (
        {"model": make(), "config": config(), "optimizer": lambda parameters: torch.optim.Rprop(parameters)},
        "Rprop has no formula",
    ),
    "units that no module is": ({"model": make(), "config": config(), "units": ["LlamaDecoderLayer"]}, "LlamaDecoderLayer"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    arguments, message = MISTAKES[name]
    with pytest.raises(ValueError, match=message):
        sluice.initialize(**arguments)


def test_a_unit_that_is_never_called_is_named(caplog: pytest.LogCaptureFixture) -> None:
    engine_of(make(), units=["Block"]).destroy()
    assert "has no forward" not in caplog.text
    engine_of(make(), units=["blocks"]).destroy()
    assert "unit blocks is a ModuleList, which has no forward" in caplog.text


def test_a_csv_monitor_has_each_step_once(tmp_path: Path) -> None:
    keys = config(csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"})
    engine = engine_of(make(), keys)
    losses = train(engine, range(3))
    engine.save_checkpoint(str(tmp_path / "saved"))
    train(engine, range(3, 5))
    engine.destroy()
    engine = engine_of(make(), keys)
    engine.load_checkpoint(str(tmp_path / "saved"))
    losses += train(engine, range(3, 6))
    engine.destroy()
    (file,) = (tmp_path / "job").glob("*train_loss.csv")
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    assert [int(samples) for samples, _ in rows] == [2, 4, 6, 8, 10, 12]
    assert [float(loss) for _, loss in rows] == pytest.approx(losses, rel=1e-12)


def test_a_schedule_goes_on_where_a_committed_state_is(tmp_path: Path) -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
    keys = config("nvme", tmp_path, scheduler=warmup)
    engine = engine_of(make(), keys, resume=False)
    train(engine, range(4))
    rates = engine.get_lr()
    engine.destroy()
    engine = engine_of(make(), keys, resume=True)
    assert engine.get_lr() == rates
    assert train(engine, range(4, 6)) == train_whole(config(scheduler=warmup), 6)[4:]
    engine.destroy()


def train_whole(keys: dict[str, Any], steps: int) -> list[float]:
    engine = engine_of(make(), keys)
    losses = train(engine, range(steps))
    engine.destroy()
    return losses


def test_one_cycle_of_the_configuration_cycles_the_betas() -> None:
    params = {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 3, "decay_step_size": 0}
    engine = engine_of(make(), config(), lr_scheduler=lambda optimizer: OneCycle(optimizer, **params))
    expected = train(engine, range(8))
    engine.destroy()
    engine = engine_of(make(), config(scheduler={"type": "OneCycle", "params": params}))
    betas = []
    mine = []
    for step in range(8):
        betas += engine.get_mom()
        mine += train(engine, range(step, step + 1))
    assert len({beta1 for beta1, _ in betas}) > 2
    assert all(beta2 == 0.99 for _, beta2 in betas)
    assert mine == expected
    engine.destroy()


@pytest.mark.parametrize(("key", "value"), [("lr", -1e-3), ("lr", float("nan")), ("eps", -1.0), ("betas", (0.9, 1.0)), ("weight_decay", -1.0)])
def test_a_value_that_no_step_can_have_is_refused_before_the_step(key: str, value: Any) -> None:
    engine, other = engine_of(make()), engine_of(make())
    train(engine, range(1)), train(other, range(1))
    ids, targets = batch(100)
    for each in (engine, other):
        each.backward(loss_of(each(ids), targets))
    good = engine.optimizer.param_groups[0][key]
    engine.optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError, match="Adam: "):
        engine.step()
    assert engine.global_steps == 1
    engine.optimizer.param_groups[0][key] = good
    engine.step()
    other.step()
    counts = [(each.global_steps, each.micro_steps, each.global_samples) for each in (engine, other)]
    assert counts[0] == counts[1] and engine.global_steps == 2
    assert train(engine, range(2, 4)) == train(other, range(2, 4))


def test_a_model_has_one_engine() -> None:
    model = make()
    engine = engine_of(model)
    with pytest.raises(ValueError, match="belongs to another engine"):
        engine_of(model)
    train(engine, range(1))
    engine.destroy()
    with pytest.raises(ValueError, match="the engine was destroyed, or another one took its model: make another one of its model.*a new Trainer"):
        engine(batch(0)[0])
