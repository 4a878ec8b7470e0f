"""One of two ranks of shards_test.py: shards of masters, states and gradients, and what ranks log.

Arguments: the rank, and a folder for the ranks to meet in.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
from small_models import Tied, batch, config, engine_of, loss_of, make

import sluice
from sluice import utils

RANK, PLACE = int(sys.argv[1]), sys.argv[2]


class Odd(Tied):
    """With a parameter of seven elements, whose last shard is filled up."""

    def __init__(self) -> None:
        super().__init__(blocks=1)
        self.odd = torch.nn.Parameter(torch.randn(7))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.odd.square().sum()


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def shard_of(whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of the flat tensor, filled up with zeros to equal parts."""
    flat = whole.flatten()
    size = (flat.numel() + 1) // 2
    return torch.nn.functional.pad(flat, (0, 2 * size - flat.numel()))[RANK * size : (RANK + 1) * size]


def check_values(parameter: Any) -> None:
    assert parameter.partition_numel() == parameter.ds_tensor.ds_numel == utils.safe_get_local_fp32_param(parameter).numel()
    whole = utils.safe_get_full_fp32_param(parameter)
    assert torch.equal(utils.safe_get_local_fp32_param(parameter), shard_of(whole))
    wanted = torch.linspace(-1, 1, parameter.ds_numel).view(parameter.ds_shape)
    utils.safe_set_local_fp32_param(parameter, shard_of(wanted))
    assert torch.equal(utils.safe_get_full_fp32_param(parameter), wanted)
    for key, factor in (("exp_avg", 2.0), ("exp_avg_sq", 3.0)):
        utils.safe_set_local_optimizer_state(parameter, shard_of(wanted.abs() * factor), key)
        assert torch.equal(utils.safe_get_full_optimizer_state(parameter, key), wanted.abs() * factor)
        assert torch.equal(utils.safe_get_local_optimizer_state(parameter, key), shard_of(wanted.abs() * factor))
    gradient = utils.safe_get_full_grad(parameter)
    assert gradient is not None
    local = utils.safe_get_local_grad(parameter)
    assert local is not None
    assert torch.equal(local, shard_of(gradient))
    utils.safe_set_local_grad(parameter, 2 * local)
    torch.testing.assert_close(utils.safe_get_full_grad(parameter), 2 * gradient)
    try:
        utils.safe_set_local_fp32_param(parameter, wanted)
    except ValueError as error:
        assert "elements" in str(error)
    else:
        raise AssertionError("a whole tensor was taken for a shard")


def check_log() -> None:
    records = Records()
    utils.logger.addHandler(records)
    utils.logger.setLevel(logging.INFO)
    for ranks in ([0], [1], [0, 1], [-1], None):
        utils.log_dist(f"to {ranks}", ranks=ranks)
    shown = {0: ["to [0]", "to [0, 1]", "to [-1]"], 1: ["to [1]", "to [0, 1]", "to [-1]"]}[RANK]
    assert records.lines == [f"[Rank {RANK}] {line}" for line in shown], records.lines


def main() -> None:
    sluice.init_distributed(init_method=f"file://{PLACE}/meet", rank=RANK, world_size=2)
    check_log()
    engine = engine_of(make(Odd), config())
    ids, targets = batch(RANK)
    engine.backward(loss_of(engine(ids), targets))
    for parameter in (engine.module.blocks[0].up.weight, engine.module.odd):
        check_values(parameter)
    engine.step()
    engine.destroy()
    print("done")


main()
