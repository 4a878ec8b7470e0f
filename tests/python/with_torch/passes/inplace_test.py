"""Units that change their inputs in place, against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
from small_models import Block, Tied, WIDTH, batch, both, differences, engine_of, loss_of, make
from torch import nn

import sluice


class Rectified(Tied):
    """Blocks begin with an operation in place, and their caller uses the changed tensor."""

    class Inner(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(nn.functional.relu(x, inplace=True))

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner(WIDTH) for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            y = block(x)
            x = x + 0.5 * y
        return self.head(self.norm(x))


class OfViews(Rectified):
    """Blocks change a view, and their caller uses its base."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            y = block(x[:, 1:])
            x = x + nn.functional.pad(y, (0, 0, 1, 0))
        return self.head(self.norm(x))


class TwoInputs(Tied):
    """Blocks change one of their inputs with a weight of their own, and a part of the other. The second is used after them."""

    class Inner(Block):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            x.mul_(self.scale)
            y[:, 0] = y[:, 0].tanh()
            return super().forward(x + y)

        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.scale = nn.Parameter(torch.full((width,), 0.9))

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner(WIDTH) for _ in range(3)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        y = 0.5 * x
        for block in self.blocks:
            x = block(x, y)
        return self.head(self.norm(x + y))


class OnlyTheInput(TwoInputs):
    """What a block returns is not used: gradients reach its weights by the input that it has changed."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        y = 0.5 * x
        for block in self.blocks:
            x = x + 1e-3 * block(x, y)
        self.blocks[0](x, y)
        return self.head(self.norm(x))


class Stream(Rectified):
    """Blocks add to the tensor that they get, and return it."""

    class Inner(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += self.down(torch.sin(self.up(self.norm(x.clone()))))
            return x

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x = block(x)
        x *= 0.5
        return self.head(self.norm(x))


class ValuesOnly(Rectified):
    """Blocks change values and no graph, of a tensor whose old values nothing needs."""

    class Inner(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x.clamp_(-1, 1)
            x.detach().mul_(0.5)
            return super().forward(x)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


MODELS = [Rectified, OfViews, TwoInputs, OnlyTheInput, Stream, ValuesOnly]


@pytest.mark.parametrize("model", MODELS)
def test_units_may_change_their_inputs(model: type[nn.Module]) -> None:
    mine, expected = both(model)
    assert mine[0] == expected[0]
    assert differences(mine, expected) < 1e-6


@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_changed_inputs_are_those_of_pytorch(model: type[nn.Module]) -> None:
    ids, targets = batch(0)
    plain = make(model)
    loss = loss_of(plain(ids), targets)
    loss.backward()
    engine = engine_of(make(model))
    mine = loss_of(engine(ids), targets)
    engine.backward(mine)
    assert torch.equal(mine, loss)
    for name, parameter in engine.module.named_parameters():
        gradient = sluice.utils.safe_get_full_grad(parameter)
        torch.testing.assert_close(gradient, plain.get_parameter(name).grad, rtol=1e-5, atol=1e-7)
    engine.destroy()


class TooEarly(Tied):
    """Changes the input of a unit that needs it in backward."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x += block(x)
        return self.head(self.norm(x))


class TooEarlyInAView(TooEarly):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        x[:, 1:] += self.blocks[0](x[:, 1:])
        return self.head(self.norm(x))


@pytest.mark.parametrize("model", [TooEarly, TooEarlyInAView])
def test_a_change_of_what_backward_needs_is_pytorchs_error(model: type[nn.Module]) -> None:
    ids, targets = batch(0)
    engine = engine_of(make(model))
    for forward in (make(model), engine):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss_of(forward(ids), targets).backward()
    engine.destroy()


def test_a_leaf_that_a_unit_changes_is_pytorchs_error() -> None:
    engine = engine_of(make(Stream))
    for model in (make(Stream), engine.module):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            model.blocks[0](torch.ones(2, WIDTH, requires_grad=True))
    engine.destroy()


class Sharing(nn.Module):
    """Changes one of two inputs in the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([Block(WIDTH)])
        self.first = nn.Linear(WIDTH, WIDTH)
        self.inner[0].forward = lambda x: x[0].relu_() + x[1]  # type: ignore[assignment,method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.inner[0]((x, x[:]))


class Returning(Sharing):
    """Changes in place what a unit has returned, which is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner[0].forward = lambda x: x[:]  # type: ignore[assignment,method-assign]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[0](self.first(x)).relu_()


@pytest.mark.parametrize("model", [Sharing, Returning])
def test_a_change_that_another_graph_would_not_know_of_is_an_error(model: type[nn.Module]) -> None:
    engine = engine_of(make(model))
    with pytest.raises(RuntimeError, match="modified inplace"):
        engine(torch.randn(2, WIDTH))
    engine.destroy()
