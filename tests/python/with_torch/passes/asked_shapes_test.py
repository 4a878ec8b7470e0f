"""A forward that asks for the shape of a weight inside another unit, whose values are not here: it is the whole weight's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import assert_follows, config, data, engine_of, equal, make, without_optimizer
from torch import nn
from torch.utils.checkpoint import checkpoint

WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "shape": lambda weight: weight.shape,
    "an attribute by name": lambda weight: (*getattr(weight, "shape"),),
    "unpacked": lambda weight: [*weight.shape],
    "the last": lambda weight: weight.shape[-1],
    "size": lambda weight: weight.size(),
    "size of a dimension": lambda weight: (weight.size(0), weight.size(dim=-1), torch.Tensor.size(weight, 1)),
    "numel": lambda weight: (weight.numel(), torch.numel(weight), torch.numel(input=weight), weight.nelement()),
    "dim": lambda weight: (weight.dim(), weight.ndimension(), weight.ndim, weight.dense_dim()),
    "nbytes": lambda weight: (weight.nbytes, weight.element_size(), weight.itemsize),
    "stride": lambda weight: (weight.stride(), weight.stride(0), weight.is_contiguous()),
    **({"names": lambda weight: weight.names} if hasattr(torch.Tensor, "names") else {}),  # not in PyTorch 2.15
    "like another": lambda weight: (weight.is_same_size(torch.ones(12, 8)), weight.is_same_size(torch.ones(0))),
    "its data": lambda weight: (weight.data.shape, weight.detach().numel(), weight.to(torch.float64).nbytes),
    "a result's type": lambda weight: torch.result_type(weight, torch.ones((), dtype=torch.float64)),
    "length": len,
    "rows": lambda weight: [row.shape for row in weight],
    "transposed": lambda weight: (weight.T.shape, weight.mT.stride(), weight.t().size(0)),
    "text": lambda weight: f"{weight.shape} {weight.numel()}",
    "fans": nn.init._calculate_fan_in_and_fan_out,  # type: ignore[attr-defined]
}


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.down(torch.tanh(self.up(x)))


class Asks(nn.Module):
    """Its forward, or that of its last block, asks for what it is given."""

    def __init__(self, asked: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(), Inner()])
        self.seen: list[Any] = []
        ask = lambda *_: self.seen.append([asked(self.blocks[0].up.weight)])
        self.blocks[1].register_forward_pre_hook(ask)
        self.register_forward_pre_hook(ask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_shape_is_that_of_the_whole_weight(way: str, stage: int) -> None:
    plain = make(Asks, asked=WAYS[way])
    plain(data())
    engine = engine_of(make(Asks, asked=WAYS[way]), without_optimizer(zero_optimization={"stage": stage}))
    engine(data())
    assert engine.module.seen == plain.seen
    weight = engine.module.blocks[0].up.weight
    assert weight.shape == (0,) and weight.numel() == 0 and weight.dim() == 1


def test_a_scalar_stays_one() -> None:
    asked = lambda _: (model.blocks[0].scale.dim(), torch.result_type(model.blocks[0].scale, torch.ones(2, dtype=torch.bfloat16)))
    model = make(Asks, asked=asked)
    engine_of(model, without_optimizer())(data())
    assert model.seen == 2 * [[(0, torch.bfloat16)]]


def asking_block() -> tuple[nn.Sequential, list[int]]:
    """Its last two layers note the size of the first one's weight."""
    seen: list[int] = []
    model = nn.Sequential(make(Inner), nn.Identity(), Inner())
    for layer in model[1:]:
        layer.register_forward_pre_hook(lambda *_: seen.append(model[0].up.weight.numel()))
    return model, seen


def test_a_block_that_is_called_alone_sees_whole_shapes() -> None:
    model, seen = asking_block()
    engine_of(model, without_optimizer())
    model[2].up.register_forward_pre_hook(lambda *_: seen.append(model[0].up.weight.numel()))
    model[2](data())
    assert seen[-1] == 96


def test_layers_of_a_step_see_whole_shapes() -> None:
    model, seen = asking_block()
    engine = engine_of(model, config(gradient_accumulation_steps=2))
    engine.train_batch(iter(2 * [(data(), data())]), nn.functional.mse_loss, by_layer=True)
    assert seen == 4 * [96]


class Recomputed(nn.Module):
    """Divides by the size of a block's weight in what is computed again."""

    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 8)
        self.blocks = nn.ModuleList([Inner(), Inner()])
        self.head = nn.Linear(8, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(self._divided, block, x, use_reentrant=self.reentrant)
        return self.head(x)

    def _divided(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        weight = self.blocks[0].up.weight
        return x + block(x) / (1 + weight.numel() + weight.shape[0]) ** 0.5


class Reentrant(Recomputed):
    reentrant = True


class Orthogonal(Recomputed):
    """Uses a parametrized weight of a block outside of it."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.orthogonal(self.blocks[0].up)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) + (self.embedding(ids) @ self.blocks[0].up.weight.T).sum()


@pytest.mark.parametrize("model", [Recomputed, Reentrant, Orthogonal])
def test_numbers_that_follow_from_a_shape_are_those_of_pytorch(model: type[nn.Module]) -> None:
    assert_follows(model)


class Exports(Asks):
    def __init__(self) -> None:
        super().__init__(lambda weight: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.exported = self.state_dict()
        return super().forward(x)


def test_a_state_dict_that_a_forward_makes_has_values() -> None:
    plain = make(Exports)
    engine = engine_of(make(Exports), without_optimizer())
    with torch.no_grad():
        engine(data())
    assert equal(dict(engine.module.exported), plain.state_dict())
