"""Graphs of every kind go through the hooks as through plain PyTorch."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from small_models import Block, Tied, WIDTH, assert_follows, batch, config, engine_of, loss_of, make, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import sluice


class Twice(Tied):
    """Calls each block twice."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for _ in range(2):
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(x))


class SideBySide(Tied):
    """Blocks on the same input, one of them twice: their backward passes interleave."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        return self.head(self.norm(sum(block(x) for block in self.blocks) + self.blocks[0](2 * x)))


class Checkpointed(Tied):
    """Computes activations of two blocks together again."""

    reentrant = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        x = checkpoint(lambda y: self.blocks[1](self.blocks[0](y)), x, use_reentrant=self.reentrant)
        x = checkpoint(self.blocks[2], x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class WithContainers(Tied):
    """Blocks that take keywords and return what is no tensor."""

    class Inner(Block):
        def forward(self, *, states: dict[str, Any], scale: float) -> dict[str, Any]:  # type: ignore[override]
            return {"nested": [(super().forward(states["x"]) * scale, None)], "count": states["count"] + 1}

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner(WIDTH) for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states: dict[str, Any] = {"x": self.embedding(ids) + self.position, "count": 0}
        for block in self.blocks:
            out = block(states=states, scale=0.5)
            states = {"x": out["nested"][0][0], "count": out["count"]}
        return self.head(self.norm(states["x"]))


class Conditional(Tied):
    """Uses another block in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        self.calls += 1
        for index in range(self.calls % 3 + 1):
            x = self.blocks[index](x)
        for block in self.blocks:  # every parameter has a gradient: PyTorch leaves out the others
            x = x + 1e-3 * block(x)
        return self.head(self.norm(x))


class WithBatchNorm(nn.Module):
    """Buffers that forward changes, and modules that are no list."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.net = nn.Sequential(nn.Conv1d(32, 64, 3, padding=1), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Conv1d(64, 32, 1))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.net(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(self.attention(x, x, x)[0])


class SelfConditioned(Tied):
    """Its forward calls the model for a guess, as a diffusion model's. Weights that it borrows are used after that call too."""

    def forward(self, ids: torch.Tensor, guess: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        if guess is None:
            with torch.no_grad():
                guess = nn.functional.linear(self(ids, torch.zeros_like(x)), self.head.weight.t())
        for block in self.blocks:
            x = block(x + 0.1 * guess)
        return nn.functional.linear(self.norm(x), self.head.weight) + 0.1 * self.position.sum()


class Recursive(Tied):
    """Calls itself with gradients, once with a call inside that fails."""

    is_checkpointed = False

    def forward(self, ids: torch.Tensor, depth: int = 0) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        if depth == 2:
            raise KeyError("too deep")
        try:
            below = checkpoint(self, ids, depth + 1, use_reentrant=False) if self.is_checkpointed else self(ids, depth + 1)
        except KeyError:
            below = 0.0
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x * (1 + self.position))) + 0.1 * below


class CheckpointedRecursive(Recursive):
    is_checkpointed = True


@pytest.mark.parametrize(
    "model",
    [
        *(Twice, SideBySide, Checkpointed, CheckpointedReentrant, WithContainers, Conditional, WithBatchNorm),
        *(SelfConditioned, Recursive, CheckpointedRecursive),
    ],
)
def test_a_graph_follows_plain_pytorch(model: type[nn.Module]) -> None:
    assert_follows(model)


def test_frozen_parameters_stay_and_have_no_states() -> None:
    class Frozen(Tied):
        def __init__(self) -> None:
            super().__init__()
            self.blocks[1].requires_grad_(False)
            self.blocks[2].up.requires_grad_(False)
            self.norm.requires_grad_(False)

    assert_follows(Frozen)
    engine = engine_of(make(Frozen))
    before = engine.module_state_dict()
    train(engine, range(2))
    after = engine.module_state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name, value in make(Frozen).named_parameters() if not value.requires_grad}
    frozen = sum(p.numel() for p in make(Frozen).parameters() if not p.requires_grad)
    total = sum(p.numel() for p in make(Frozen).parameters())
    states = next(row for row in engine.report()["plan"]["rows"] if row["component"] == "optimizer states")
    assert 12 * (total - frozen) <= states["host"] < 12 * (total - frozen) + 12 * 2048 * 8  # padding of layouts
    engine.destroy()


def test_a_loss_may_have_two_backwards_and_a_graph_be_kept() -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    engine = engine_of(make(), config(gradient_accumulation_steps=2))
    ids, targets = batch(0)
    loss = loss_of(model(ids), targets) / 2
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    mine = loss_of(engine(ids), targets)
    engine.backward(mine, retain_graph=True)
    engine.step()
    engine.backward(mine)
    engine.step()
    assert engine.global_steps == 1
    with pytest.raises(RuntimeError, match=r"have changed|second time"):
        engine.backward(mine)
    weights = engine.module_state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-5, atol=1e-7)
    engine.destroy()


def test_sequences_may_change_their_length() -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    engine = engine_of(make())
    for step, length in enumerate((16, 3, 9, 16, 1)):
        ids, targets = batch(step, length)
        loss = loss_of(model(ids), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mine = loss_of(engine(ids), targets)
        engine.backward(mine)
        engine.step()
        assert mine.item() == pytest.approx(loss.item(), rel=1e-6)
    engine.destroy()


class Failing(Tied):
    fail = ""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1 and self.fail == "forward":
                raise ArithmeticError("in forward")
            if index == 1 and self.fail == "backward":
                x.register_hook(_fail)
        return self.head(self.norm(x))


def _fail(gradient: torch.Tensor) -> None:
    raise ArithmeticError("in backward")


@pytest.mark.parametrize("place", ["forward", "backward"])
@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
def test_training_goes_on_after_an_exception(place: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    reference = engine_of(make(Failing))
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(make(Failing))
    mine = train(engine, range(2))
    engine.module.fail = place
    if error is KeyboardInterrupt:
        monkeypatch.setattr("builtins.ArithmeticError", KeyboardInterrupt)
    for _ in range(2):
        with pytest.raises(error):
            train(engine, range(2, 3))
    engine.module.fail = ""
    assert mine + train(engine, range(2, 4)) == expected
    engine.destroy()


def test_a_failed_backward_outside_the_engine_is_cleaned_up_by_the_next_forward(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(Failing))
    engine.module.fail = "backward"
    ids, targets = batch(0)
    with pytest.raises(ArithmeticError):
        loss_of(engine(ids), targets).backward()
    engine.module.fail = ""
    train(engine, range(1))
    assert "gradients of this step so far are dropped" in caplog.text
    engine.destroy()


def test_a_tensor_that_leaves_a_unit_by_an_attribute_is_an_error_not_a_crash() -> None:
    class Leaking(Tied):
        class Inner(Block):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x)
                self.aside = self.up(x).square().mean()
                return y

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([self.Inner(WIDTH) for _ in range(2)])

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) + self.position
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x).detach()) + sum(block.aside for block in self.blocks)

    engine = engine_of(make(Leaking))
    ids, targets = batch(0)
    with pytest.raises((RuntimeError, ValueError), match=r"size of tensor|outside its unit's backward"):
        engine.backward(loss_of(engine(ids), targets))
        engine.step()


def test_parameters_are_empty_outside_of_their_unit_and_say_what_they_are() -> None:
    engine = engine_of(make())
    plain = dict(make().named_parameters())
    for name, parameter in engine.module.named_parameters():
        assert parameter.numel() == 0
        assert parameter.ds_shape == plain[name].shape
        assert parameter.ds_numel == plain[name].numel()
        assert parameter.grad is None
    train(engine, range(1))
    assert all(parameter.numel() == 0 and parameter.grad is None for parameter in engine.module.parameters())
    engine.destroy()


def test_evaluation_between_steps_changes_nothing() -> None:
    reference = engine_of(make())
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(make())
    mine = train(engine, range(2))
    engine.eval()
    with torch.no_grad():
        first = engine(batch(50)[0])
        assert torch.equal(engine(batch(50)[0]), first)
    with torch.inference_mode():
        assert torch.equal(engine(batch(50)[0]), first)
    engine.train()
    assert mine + train(engine, range(2, 4)) == expected
    engine.destroy()


def test_steps_inside_no_sync_are_an_error() -> None:
    engine = engine_of(make(), config(gradient_accumulation_steps=2))
    ids, targets = batch(0)
    with engine.no_sync():
        engine.backward(loss_of(engine(ids), targets))
        with pytest.raises(RuntimeError, match="no_sync"):
            engine.step()
    engine.step()
    engine.destroy()


def test_an_engine_that_is_dropped_ends() -> None:
    threads = threading.active_count()
    engine = engine_of(make())
    train(engine, range(1))
    gone = weakref.ref(engine)
    engine.destroy()
    del engine
    gc.collect()
    assert gone() is None
    assert threading.active_count() == threads


def test_another_pytorch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.__version__.split("+")[0]
    monkeypatch.setattr(torch, "__version__", "2.10.0+cpu")
    with pytest.raises(sluice.Error) as caught:
        engine_of(make())
    assert f"built for PyTorch {own}, and this is PyTorch 2.10.0+cpu: install torch=={own}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_loaders_with_workers_beside_an_engine() -> None:
    engine = engine_of(make())
    dataset = [batch(number) for number in range(8)]
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    for ids, targets in loader:
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    assert engine.global_steps == 8
    engine.destroy()
