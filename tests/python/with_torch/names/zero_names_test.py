"""sluice.zero by DeepSpeed's rules: parameters of other modules, contexts inside a forward, models built in a context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import WIDTH, Tied, assert_follows, batch, config, engine_of, make, train
from torch import nn

from sluice import zero
from sluice._training.file_parameters import is_in_file


class OtherUsesIt(Tied):
    """The forward of the model uses a weight from inside a block, which is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        zero.register_external_parameter(self, self.blocks[1].up.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = x + nn.functional.linear(x, self.blocks[1].up.weight)[..., :WIDTH]
        return self.head(self.norm(x))


class GatheredInForward(OtherUsesIt):
    """The same with a context of one use."""

    def __init__(self) -> None:
        super().__init__()
        zero.unregister_external_parameter(self, self.blocks[1].up.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        weight = self.blocks[1].up.weight
        with zero.GatheredParameters(weight, fwd_module=self):
            x = x + nn.functional.linear(x, weight)[..., :WIDTH]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NotRegistered(OtherUsesIt):
    """Its forward alone says that it uses the weight."""

    def __init__(self) -> None:
        super().__init__()
        zero.unregister_external_parameter(self, self.blocks[1].up.weight)


class BlocksShareIt(Tied):
    """A block uses a weight of the block before it."""

    class Inner(nn.Module):
        def __init__(self, before: nn.Linear | None) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.others = [before]  # in a list: it is no child
            if before is not None:
                zero.register_external_parameter(self, before.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.down(torch.relu(self.up(x)))
            return y if self.others[0] is None else y + nn.functional.linear(x, self.others[0].weight)

    def __init__(self) -> None:
        super().__init__()
        first = self.Inner(None)
        self.blocks = nn.ModuleList([first, self.Inner(first.up)])


@pytest.mark.parametrize("model", [OtherUsesIt, NotRegistered, GatheredInForward, BlocksShareIt])
def test_a_weight_from_inside_another_unit_follows_plain_pytorch(model: type[nn.Module]) -> None:
    assert_follows(model)
    engine = engine_of(make(model))
    train(engine, range(1))
    assert all(parameter.numel() == 0 for parameter in engine.module.parameters())
    ids, _ = batch(0)
    with torch.no_grad():
        assert torch.equal(engine(ids), engine(ids))
    engine.destroy()


def test_external_parameters_are_parameters_and_registered_once() -> None:
    model = make()
    with pytest.raises(RuntimeError, match=r"no torch\.nn\.Parameter"):
        zero.register_external_parameter(model, torch.ones(2))  # type: ignore[arg-type]
    weight = model.blocks[0].up.weight
    with pytest.raises(RuntimeError, match="is not registered"):
        zero.unregister_external_parameter(model, weight)
    hooks = len(model._forward_pre_hooks)
    zero.register_external_parameter(model, weight)
    zero.register_external_parameter(model, weight)
    assert len(model._forward_pre_hooks) == hooks + 1
    ids, _ = batch(0)
    assert torch.equal(model(ids), make()(ids))  # a model of no engine stays as it is
    zero.unregister_external_parameter(model, weight)
    assert len(model._forward_pre_hooks) == hooks


def test_contexts_that_are_switched_off_gather_nothing() -> None:
    engine = engine_of(make())
    weight = engine.module.blocks[0].up.weight
    with zero.GatheredParameters(weight, enabled=False):
        assert weight.numel() == 0
    assert weight.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE
    with zero.GatheredParameters([weight]):
        assert weight.ds_status is zero.ZeroParamStatus.AVAILABLE
        with zero.GatheredParameters(weight):
            pass
        assert weight.ds_status is zero.ZeroParamStatus.AVAILABLE
        assert torch.equal(weight, make().blocks[0].up.weight)
    assert weight.ds_status is zero.ZeroParamStatus.NOT_AVAILABLE
    with pytest.raises(ArithmeticError), zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.zero_()
        raise ArithmeticError
    with zero.GatheredParameters(weight):
        assert weight.abs().max() == 0  # changes before the error are kept, as in DeepSpeed
    engine.destroy()


def test_models_are_built_with_a_data_type_and_moved_to_files(tmp_path: Path) -> None:
    with zero.Init(dtype=torch.bfloat16):
        made: Any = make()
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}
    assert torch.equal(made.norm.weight, torch.ones(WIDTH, dtype=torch.bfloat16))
    with zero.Init(dtype=torch.bfloat16, enabled=False):
        assert nn.Linear(2, 2).weight.dtype == torch.float32
    assert nn.Linear(2, 2).weight.dtype == torch.float32  # the context is left

    keys = config("nvme", tmp_path)
    there = make()
    before = {name: value.clone() for name, value in there.state_dict().items()}
    zero.Init(module=there, config_dict_or_path=keys)
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) in maps.read()  # its parameters are mapped files
    assert all(torch.equal(value, before[name]) for name, value in there.state_dict().items())
    reference, engine = engine_of(make(), config()), engine_of(there, keys)
    assert train(engine, range(2)) == train(reference, range(2))
    engine.destroy()
    reference.destroy()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("data_parallel_group", object()),
        ("mpu", object()),
        ("zero_param_parallel_group", object()),
        ("zero_quantized_weights", True),
        ("zero_quantized_nontrainable_weights", True),
        ("sequence_data_parallel_group", object()),
        ("param_swapper", object()),
    ],
)
def test_arguments_of_init_that_it_cannot_follow_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"zero.Init cannot follow {argument}: leave it out"):
        zero.Init(**{argument: value})
    zero.Init(**{argument: value}, enabled=False)
    zero.Init(**{argument: False if value is True else None}, mem_efficient_linear=False)


def test_a_mistyped_argument_of_init_is_an_error() -> None:
    with pytest.raises(TypeError, match="config_dict_or_pth"):
        zero.Init(config_dict_or_pth=config())  # type: ignore[call-arg]


def test_the_remote_device_of_init_is_followed(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)
    for remote, in_file in ((None, True), ("none", True), ("nvme", True), ("cpu", False)):
        with zero.Init(config_dict_or_path=keys, remote_device=remote):
            assert is_in_file(nn.Linear(8, 8).weight) == in_file, remote
    with pytest.raises(ValueError, match='remote_device="nvme" has no drive: pass a configuration with "offload_param"'):
        zero.Init(config_dict_or_path=config(), remote_device="nvme")
    with pytest.raises(ValueError, match="remote_device is 'cuda': \"cpu\", \"nvme\", or None"):
        zero.Init(remote_device="cuda")
