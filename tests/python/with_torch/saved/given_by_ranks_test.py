"""Values that a rank gives to all before there is an engine, and directories of checkpoints that the ranks do not share."""

from __future__ import annotations

from pathlib import Path

from forked import run_ranks

FOLDER = Path(__file__).parent.parent


def run_two(text: str, place: Path) -> None:
    script = place / "script.py"
    script.write_text(text)
    run_ranks(2, script, FOLDER, place)
    assert {path.name for path in place.glob("ended*")} == {"ended0", "ended1"}


NO_ENGINE = """
import os, sys
import torch
from torch import nn
from sluice import zero
rank, place = int(os.environ["RANK"]), sys.argv[2]
torch.manual_seed(rank)
with zero.Init(config_dict_or_path={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_param": {
        "device": "nvme", "nvme_path": place}}}):
    model = nn.Linear(3, 2)
with zero.GatheredParameters(model, modifier_rank=0), torch.no_grad():  # joins the ranks
    if rank == 0:
        model.weight.fill_(7)
assert bool((model.weight == 7).all()), model.weight

turned = nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16).t())
one = nn.Parameter(torch.tensor(0.0), requires_grad=False)
before = model.bias.detach().clone()
try:
    with zero.GatheredParameters([turned, None, one], modifier_rank=1), torch.no_grad():
        turned.copy_(torch.arange(6).view(2, 3) + 10 * rank)
        one.fill_(rank)
        model.bias.fill_(rank)  # is not given: stays each rank's own
        if rank == 1:
            raise KeyError("a mistake of one rank")
except KeyError:
    assert rank == 1
assert turned.tolist() == [[10, 11, 12], [13, 14, 15]] and not turned.is_contiguous(), turned
assert one == 1 and bool((model.bias == rank).all())

with zero.GatheredParameters(model.bias):
    pass
assert bool((model.bias == rank).all())  # for reading: nothing is sent
with zero.GatheredParameters([], modifier_rank=0):
    pass

try:
    with zero.GatheredParameters([one, model.bias], modifier_rank=0):
        if rank == 1:
            model.bias.data = torch.zeros(5)
except ValueError as error:
    expected = "parameter 1 of no engine is of shape [2] and torch.float32 on rank 0, and of shape [5] and torch.float32 on rank 1"
    assert expected in str(error), error
else:
    raise AssertionError("ranks with parameters of several shapes")
open(os.path.join(place, f"ended{rank}"), "w").close()
"""


def test_parameters_of_no_engine_get_the_values_of_the_modifier_rank(tmp_path: Path) -> None:
    run_two(NO_ENGINE, tmp_path)


DIRECTORIES = """
import os, sys
sys.path.insert(0, sys.argv[1])
from small_models import engine_of, make, train
rank, place = int(os.environ["RANK"]), sys.argv[2]
engine = engine_of(make(blocks=1))
train(engine, range(1))
os.mkdir(os.path.join(place, f"own{rank}"))
for call, name in ((engine.save_checkpoint, "save_dir"), (engine.load_checkpoint, "load_dir")):
    try:
        call(os.path.join(place, f"own{rank}"), tag="a")
    except ValueError as error:
        for part in (f"the {name} of ", "own0 (one path that all ranks see) on rank 0", "own1 (one path that all ranks see) on rank 1"):
            assert part in str(error), error
    else:
        raise AssertionError("directories of several ranks")
assert os.listdir(os.path.join(place, f"own{rank}")) == []
engine.save_checkpoint(os.path.join(place, "all") + "/" * rank)
assert engine.load_checkpoint(os.path.join(place, "all"))[0] is not None
engine.destroy()
open(os.path.join(place, f"ended{rank}"), "w").close()
"""


def test_ranks_that_give_several_directories_are_told_so(tmp_path: Path) -> None:
    run_two(DIRECTORIES, tmp_path)


OTHERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
import sluice
from small_models import config, engine_of, make
from sluice import utils, zero
rank, place = int(os.environ["RANK"]), sys.argv[2]

def refused(given, modifier, expected):
    try:
        with zero.GatheredParameters(given[::-1] if rank else given, modifier_rank=modifier), torch.no_grad():
            for parameter in given:
                parameter.fill_(7 + rank)
    except ValueError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(expected)

sluice.init_distributed()
alone = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))]
refused(alone, rank, "modifier_rank of GatheredParameters is 0 on rank 0 and 1 on rank 1, and no change is kept")
refused(alone, 0, "of shape [2] and torch.float32 on rank 0, and of shape [3] and torch.float32 on rank 1")
for stage in (2, 3):
    engine, other = (engine_of(make(blocks=1), config("device", zero_optimization={"stage": stage})) for _ in range(2))
    norm = engine.module.norm
    before = engine.module_state_dict()
    both = [norm.weight, norm.bias]
    refused(both, rank, "modifier_rank of GatheredParameters is 0 on rank 0 and 1 on rank 1, and no change is kept")
    refused(both, 0, "the same parameters: parameter 0 of an engine is norm.weight of engine ")
    refused([norm.weight, other.module.norm.weight], 1, "parameter 0 of an engine is norm.weight of engine ")
    refused(both[:1] if rank else both, 0, ", and none of an engine on rank 1: the values of modifier_rank=0 reach no rank. ")
    assert all(torch.equal(value, before[name]) for name, value in engine.module_state_dict().items())
    with zero.GatheredParameters(both, modifier_rank=1), torch.no_grad():
        norm.weight.fill_(rank)
    assert bool((utils.safe_get_full_fp32_param(norm.weight) == 1).all())
    engine.destroy()
    other.destroy()
open(os.path.join(place, f"ended{rank}"), "w").close()
"""


def test_ranks_that_give_other_parameters_or_modifiers_are_told_so(tmp_path: Path) -> None:
    run_two(OTHERS, tmp_path)


DIFFERENT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
from small_models import batch, config, engine_of, loss_of, make
from sluice import utils
rank, place = int(os.environ["RANK"]), sys.argv[2]
engine = engine_of(make(), config(gradient_accumulation_steps=2))
ids, targets = batch(rank)
engine.backward(loss_of(engine(ids), targets))
one, other = engine.module.blocks[0].up.weight, engine.module.blocks[1].up.weight  # of one shape
before = utils.safe_get_full_fp32_param(one)
setters = {
    "fp32 parameter": utils.safe_set_full_fp32_param,
    "state exp_avg": lambda parameter, value: utils.safe_set_full_optimizer_state(parameter, value, "exp_avg"),
    "gradient": utils.safe_set_full_grad,
}
for what, set_it in setters.items():
    for parameter, value in ((one, float(rank)), (other if rank else one, 1.0)):
        try:
            set_it(parameter, torch.full(parameter.ds_shape, value))
        except ValueError as error:
            assert f"the {what} to be set is that of blocks.0.up.weight" in str(error), error
        else:
            raise AssertionError(what)
    set_it(one, torch.full(one.ds_shape, 0.5))
assert not torch.equal(utils.safe_get_full_fp32_param(one), before)
for value in (utils.safe_get_full_fp32_param(one), utils.safe_get_full_optimizer_state(one, "exp_avg"), utils.safe_get_full_grad(one)):
    assert bool((value == 0.5).all()), value
engine.destroy()
open(os.path.join(place, f"ended{rank}"), "w").close()
"""


def test_values_that_ranks_set_are_one_tensor(tmp_path: Path) -> None:
    run_two(DIFFERENT, tmp_path)
