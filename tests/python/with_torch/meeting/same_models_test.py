"""Models of all ranks are one: what the ranks compare when an engine starts, and values that they get from rank 0."""

from __future__ import annotations

from pathlib import Path

from ranks_test import run_text

BEGIN = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
from torch import nn
from small_models import engine_of, make
import sluice
rank = int(os.environ["RANK"])

class Model(nn.Module):
    def __init__(self, keys="abc"):
        super().__init__()
        self.values = nn.ParameterDict()
        for key in keys:
            self.values[key] = nn.Parameter(torch.full((4,), float(ord(key))))

    def forward(self, x):
        return x @ self.values["a"]

def refusal(model):
    try:
        engine_of(model)
    except ValueError as error:
        return str(error)

def with_buffer(value):
    model = Model()
    if value is not None:
        model.register_buffer("own", value)
    return model

"""
END = """
open(os.path.join(sys.argv[2], str(rank)), "w").write("null")
"""
DIFFERENT = """
different = "the ranks train different things: "
names = ["abc", "acb"][rank]
way_out = ". Make them in one order: a loop over a set has another one in each process, and one over sorted(...) has not"
order = "the order of parameters in unit values is "
said = refusal(Model(names))
assert said == different + order + "[..., values.b, values.c] on rank 0 and [..., values.c, values.b] on rank 1" + way_out, said
long = [list("abcdefghij"), list("jihgfedcba")][rank]
shown = [", ".join("values." + key for key in keys) for keys in ("abcdef", "jihgfe")]
said = refusal(Model(long))
assert said == f"{different}{order}[{shown[0]}, ...] on rank 0 and [{shown[1]}, ...] on rank 1{way_out}", said
said = refusal([Model(), Model().bfloat16()][rank])
assert said == different + "parameter values.a is [4], float32, trained on rank 0 and [4], bfloat16, trained on rank 1", said
for other, kind in (
    (torch.zeros(3, dtype=torch.float64), "[3], float64"),
    (torch.zeros(4), "[4], float32"),
    (None, "none"),
    (torch.zeros(1).expand(3), "[3], float32, expanded from [1]"),
):
    said = refusal(with_buffer([torch.zeros(3), other][rank]))
    assert said == f"{different}buffer own is [3], float32 on rank 0 and {kind} on rank 1", said
said = refusal(with_buffer(torch.eye(3).to_sparse()))
assert said.startswith("buffer own is sparse_coo, and ranks share plain tensors only: "), said
"""
BUFFERS = """
def made(number):
    random = torch.Generator().manual_seed(number)
    drawn = torch.randn(2, 3, 4, 5, generator=random)
    return {
        "plain": drawn[0],
        "slice": drawn.flatten()[::2],
        "columns": drawn[..., 1],
        "channels": drawn.to(memory_format=torch.channels_last if number else torch.contiguous_format),
        "expanded": drawn[0, 0, :, :1].clone().expand(4, 5000),
        "one": drawn[0, 0, 0, :1].clone().expand(5),
        "negative": torch.complex(drawn, drawn + 1).conj().imag,
        "conjugate": torch.complex(drawn, drawn + 1).conj(),
        "shorts": (drawn * 100).to(torch.int16),
        "bools": drawn > 0,
        "eights": drawn.to(torch.float8_e4m3fn),
        "number": torch.tensor(float(number)),
        "empty": drawn[:0],
    }

model = Model()
# Registered in another order on each rank.
for name, value in sorted(made(rank).items(), reverse=rank == 1):
    model.register_buffer(name, value)
own = {name: (value, value.stride()) for name, value in model.named_buffers()}
around = model.slice._base[1::2].clone()  # what is beside a buffer in memory
engine = engine_of(model)
for name, value in made(0).items():
    mine = model.get_buffer(name)
    is_wide = value.is_floating_point() and value.itemsize > 1
    assert mine is own[name][0] and mine.dtype == (torch.float32 if is_wide else value.dtype), name
    bits = (lambda tensor: tensor.view(torch.uint8)) if name == "eights" else (lambda tensor: tensor)
    assert torch.equal(bits(mine), bits(value.to(mine.dtype))), name
    assert value.dtype != torch.float32 or mine.stride() == own[name][1], name
engine.destroy()
"""
WRAPPED = """
sluice.init_distributed()
wrapped = nn.parallel.DistributedDataParallel(Model())
for model, where in ((wrapped, "the model"), (nn.Sequential(nn.Linear(4, 4), wrapped), "module 1")):
    said = refusal(model)
    assert said.startswith(where + " is wrapped in DistributedDataParallel, "), said
engine_of(wrapped.module).destroy()
"""


def test_ranks_with_different_models_are_refused_with_the_difference(tmp_path: Path) -> None:
    run_text(BEGIN + DIFFERENT + END, tmp_path)


def test_buffers_start_with_the_values_of_rank_0_whatever_their_memory(tmp_path: Path) -> None:
    run_text(BEGIN + BUFFERS + END, tmp_path)


def test_a_model_that_averages_its_gradients_is_refused_by_name(tmp_path: Path) -> None:
    run_text(BEGIN + WRAPPED + END, tmp_path)
