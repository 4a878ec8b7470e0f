"""Units that put tensors into what their caller has given them: lists, dicts, other tensors. Against plain PyTorch."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from small_models import Block, Tied, WIDTH, batch, both, differences, engine_of, make
from torch import nn

import sluice


class Filling(Tied):
    """Blocks get a container and their caller uses what is in it afterwards."""

    class Inner(Block):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.more = nn.Linear(width, width)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner(WIDTH) for _ in range(3)])


class List(Filling):
    class Inner(Filling.Inner):
        def forward(self, x: torch.Tensor, aside: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            aside.append(self.more(x))
            return super().forward(x)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, aside = self.embedding(ids) + self.position, []
        for block in self.blocks:
            x = block(x, aside)
        assert len(aside) == len(self.blocks)
        return self.head(self.norm(x + sum(aside)))


class OnlyTheDict(Filling):
    """Blocks return nothing, and change an entry that another one has made."""

    class Inner(Filling.Inner):
        def forward(self, *, state: dict[str, Any]) -> None:  # type: ignore[override]
            state["x"] = super().forward(state["x"])
            state["sum"] = state.get("sum", 0) + self.more(state["x"])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = {"x": self.embedding(ids) + self.position, "name": "a text"}
        for block in self.blocks:
            block(state=state)
        return self.head(self.norm(state["x"] + state["sum"]))


@dataclasses.dataclass
class State:
    x: torch.Tensor
    sums: tuple[torch.Tensor, ...] = ()


class OnlyTheAttribute(Filling):
    class Inner(Filling.Inner):
        def forward(self, state: State) -> None:  # type: ignore[override]
            state.x = super().forward(state.x)
            state.sums = (*state.sums, self.more(state.x))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = State(self.embedding(ids) + self.position)
        for block in self.blocks:
            block(state)
        return self.head(self.norm(state.x + sum(state.sums)))


class OtherTensor(Filling):
    """Blocks write a part of a tensor that needs no gradient before."""

    class Inner(Filling.Inner):
        def forward(self, x: torch.Tensor, out: torch.Tensor) -> None:  # type: ignore[override]
            out[:] = super().forward(x)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            out = torch.zeros_like(x)
            block(x, out)
            x = out + x
        return self.head(self.norm(x))


class TheInputItself(Filling):
    """Blocks keep their input in a list, as they are called with it."""

    class Inner(Filling.Inner):
        def forward(self, inputs: list[torch.Tensor], kept: dict[int, tuple[torch.Tensor, int]]) -> torch.Tensor:  # type: ignore[override]
            kept[len(kept)] = (inputs[-1], 1)
            return super().forward(inputs[-1]) + self.more(inputs[0])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        inputs, kept = [self.embedding(ids) + self.position], {}
        for block in self.blocks:
            inputs.append(block(inputs, kept))
        for number, (tensor, _) in kept.items():
            assert tensor is inputs[number]
        return self.head(self.norm(sum(inputs)))


class FrozenDict(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError("this is not to be changed")


class FrozenList(list[Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("this is not to be changed")


class Frozen(Filling):
    """Blocks take and return containers that refuse changes."""

    class Inner(Filling.Inner):
        def forward(self, state: FrozenDict) -> FrozenDict:  # type: ignore[override]
            x = super().forward(state["x"])
            return FrozenDict(x=x, sums=FrozenList([*state["sums"], self.more(x).flatten(1).view_as(x)]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = FrozenDict(x=self.embedding(ids) + self.position, sums=FrozenList())
        for block in self.blocks:
            given = state["x"]
            after = block(state)
            assert state["x"] is given
            state = after
        return self.head(self.norm(state["x"] + sum(state["sums"])))


@pytest.mark.parametrize("model", [List, OnlyTheDict, OnlyTheAttribute, OtherTensor, TheInputItself, Frozen])
def test_what_a_unit_puts_into_its_callers_containers_is_there(model: type[nn.Module]) -> None:
    mine, expected = both(model)
    assert mine[0] == expected[0]
    assert differences(mine, expected) < 1e-6


class Failing(Filling):
    class Inner(Filling.Inner):
        def forward(self, inputs: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            raise OSError("a cache is full")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        inputs = [x]
        try:
            return self.blocks[0](inputs)
        finally:
            assert inputs[0] is x


def test_a_list_has_the_callers_tensors_after_a_failure_too() -> None:
    engine = engine_of(make(Failing))
    with pytest.raises(OSError, match="cache is full"):
        engine(batch(0)[0])
    engine.destroy()


class FillsDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        state["x"] = torch.tanh(self.linear(state["x"]))
        return state


class Circular(nn.Module):
    """Units pass on a dict that contains itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([FillsDict(), FillsDict()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: dict[str, Any] = {"x": x, "list": []}
        state["self"] = state
        state["list"].append(state)
        for block in self.blocks:
            state = block(state)
        return state["x"]


def test_a_dict_may_contain_itself() -> None:
    torch.manual_seed(0)
    model = Circular()
    plain = copy.deepcopy(model)
    engine = engine_of(model)
    x = torch.randn(2, 8)
    loss, expected = (each(x).square().mean() for each in (engine, plain))
    torch.testing.assert_close(loss, expected)
    expected.backward()
    engine.backward(loss)
    gradient = sluice.utils.safe_get_full_grad(model.blocks[0].linear.weight)
    torch.testing.assert_close(gradient, plain.blocks[0].linear.weight.grad)
    engine.destroy()


class Twice(tuple[Any, ...]):
    """Its class takes no list of its parts."""

    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Twice:
        return super().__new__(cls, (first, second))


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        part = Twice(x, self.linear(x))
        return part, part


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Returning()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.0
        first, second = self.block(x)
        assert type(first) is Twice and first is second and first[0] is x
        return first[1]


def test_a_tuple_of_any_class_has_the_callers_tensor_and_stays_one_object() -> None:
    engine = engine_of(Caller(), units=["Returning"])
    engine.backward(engine(torch.randn(2, 8, requires_grad=True)).sum())
    engine.destroy()
