"""One of two ranks of defaults_test.py: a script that changes PyTorch's default device and data type while it trains.

Arguments: the rank, a folder for the ranks to meet in, and the data type.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from small_models import batch, config, engine_of, loss_of, make

import sluice
from sluice import utils

RANK, PLACE, DTYPE = int(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])


def main() -> None:
    sluice.init_distributed(init_method=f"file://{PLACE}/meet", rank=RANK, world_size=2)
    engine = engine_of(make(blocks=1))
    batches = [batch(2 * number + RANK) for number in range(2)]

    def train(number: int) -> None:
        ids, targets = batches[number]
        engine.backward(loss_of(engine(ids), targets))
        engine.step()

    train(0)
    engine.save_checkpoint(str(PLACE / "saved"))
    saved = {name: value.clone() for name, value in engine.module_state_dict().items()}
    torch.set_default_device("meta")  # on which nothing can be sent
    torch.set_default_dtype(DTYPE)
    train(1)
    shard = utils.safe_get_local_fp32_param(engine.module.blocks[0].up.weight)
    assert (shard.device.type, shard.dtype) == ("cpu", torch.float32)
    utils.safe_set_local_fp32_param(engine.module.blocks[0].up.weight, shard)
    moved = engine.module_state_dict()
    assert not torch.equal(moved["blocks.0.up.weight"], saved["blocks.0.up.weight"])
    engine.load_checkpoint(str(PLACE / "saved"), load_module_only=True)
    loaded = engine.module_state_dict()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    engine.save_checkpoint(str(PLACE / "saved"))
    engine.destroy()
    print("done")


main()
