"""Parameters that stay in their modules: those without elements, and frozen ones of a type that none trains in."""

from __future__ import annotations

from pathlib import Path

import torch
from small_models import Block, Tied, WIDTH, assert_follows, config, engine_of, make, train
from torch import nn

import sluice
from sluice.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint


class WithNothing(Tied):
    """A parameter without elements beside the others, in a block, and in a module of its own."""

    class Inner(Block):
        def __init__(self) -> None:
            super().__init__(WIDTH)
            self.extra = nn.Parameter(torch.empty(0, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cat([x.flatten(0, 1), self.extra]).view_as(x))

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner() for _ in range(2)])
        self.prompts = nn.ParameterList([nn.Parameter(torch.empty(0, 3))])


def test_they_train_as_in_pytorch() -> None:
    assert_follows(WithNothing)


def test_a_checkpoint_gives_them_as_weights(tmp_path: Path) -> None:
    engine = engine_of(make(WithNothing), config())
    train(engine, range(1))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    make(WithNothing).load_state_dict(found)  # has them all
    assert found["prompts.0"].shape == (0, 3)


def test_they_are_in_state_dicts_and_groups_in_the_type_that_computes() -> None:
    model = make(WithNothing)
    keys = config(bf16={"enabled": True})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = sluice.initialize(model=model, config=keys, optimizer=optimizer)[0]
    train(engine, range(1))
    state = engine.module_state_dict()
    assert state["prompts.0"].shape == (0, 3)
    assert state["blocks.0.extra"].dtype == torch.bfloat16
    engine.destroy()


class WithTable(Tied):
    """A frozen parameter of whole numbers, which forward indexes with, in a block and in the model itself."""

    class Inner(Block):
        def __init__(self) -> None:
            super().__init__(WIDTH)
            self.order = nn.Parameter(torch.arange(WIDTH).flip(0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[..., self.order]

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner() for _ in range(2)])
        self.version = nn.Parameter(torch.tensor([3]), requires_grad=False)


def test_frozen_whole_numbers_stay_and_the_others_train_as_in_pytorch() -> None:
    assert_follows(WithTable)
    engine = sluice.initialize(model=make(WithTable), config=config(bf16={"enabled": True}))[0]
    train(engine, range(1))
    state = engine.module_state_dict()
    assert torch.equal(state["blocks.1.order"], torch.arange(WIDTH).flip(0))
    assert state["version"].tolist() == [3]
    engine.destroy()
    assert engine.module.version.tolist() == [3]


class WithStored(Tied):
    """Frozen weights as quantized models store them, in a block, and a buffer of them."""

    class Inner(Block):
        def __init__(self) -> None:
            super().__init__(WIDTH)
            self.scale = nn.Parameter(torch.rand(WIDTH).to(torch.float8_e4m3fn), requires_grad=False)
            self.register_buffer("shift", torch.rand(WIDTH).to(torch.float8_e5m2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale.to(x.dtype) + self.shift.to(x.dtype)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([self.Inner() for _ in range(2)])


def test_frozen_numbers_of_8_bits_stay_in_their_type() -> None:
    assert_follows(WithStored)
    engine = sluice.initialize(model=make(WithStored), config=config(bf16={"enabled": True}))[0]
    train(engine, range(1))
    state = engine.module_state_dict()
    assert (state["blocks.1.scale"].dtype, state["blocks.1.shift"].dtype) == (torch.float8_e4m3fn, torch.float8_e5m2)
    assert torch.equal(state["blocks.0.scale"].float(), make(WithStored).blocks[0].scale.float())
    engine.destroy()
