"""One rank of wrong_ranks_test.py: trains, and does on rank 1 what the test asks. Arguments: what, and a folder."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from small_models import Tied, batch, config, engine_of, loss_of, make

import sluice

STEPS = 4


class Skipping(Tied):
    """Leaves out a block in its forward where it is told to."""

    skips = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for index, block in enumerate(self.blocks):
            if not (self.skips and index == 1):
                x = block(x)
        return self.head(self.norm(x))


def groups_of(model: torch.nn.Module, what: str, is_wrong: bool) -> list[dict[str, Any]] | None:
    """The second group has another rate, or another parameter, on the rank that is wrong."""
    if what not in ("groups", "members"):
        return None
    parameters = list(model.parameters())
    count = 2 if what == "members" and is_wrong else 1
    second = [parameter for name, parameter in model.named_parameters() if name in ("norm.weight", "norm.bias")][:count]
    rate = 2e-3 if what == "groups" and is_wrong else 1e-3
    first = [parameter for parameter in parameters if all(parameter is not one for one in second)]
    return [{"params": first}, {"params": second, "lr": rate, "weight_decay": 0.0}]


def main() -> None:
    what, is_wrong = sys.argv[1], os.environ["RANK"] == "1"
    commits = what == "late"
    keys = config("nvme" if commits or what == "reads" else "cpu", Path(sys.argv[2]))
    keys["sluice"]["threads"] = {"compute": 1}
    if what in ("saves apart", "starts apart"):
        os.chdir(Path(sys.argv[2]) / os.environ["RANK"])  # as where a path is another directory on each host
    if what == "starts apart":
        keys["sluice"]["checkpoint_dir"] = "checkpoints"
    if what == "rate" and is_wrong:
        keys["optimizer"]["params"]["lr"] = 0.5
    if what == "type" and is_wrong:
        keys["optimizer"] |= {"type": "Adam", "params": {**keys["optimizer"]["params"], "adam_w_mode": False}}
    if what == "scale":
        keys["fp16"] = {"enabled": True, "initial_scale_power": 12 if is_wrong else 8}
    if what == "prescale":
        keys["prescale_gradients"] = is_wrong
    if what == "tier" and is_wrong:
        keys["zero_optimization"]["offload_optimizer"]["device"] = "none"
    model = make(Skipping, blocks=4 if what == "model" and is_wrong else 3)
    resume = True if commits or what == "starts apart" else None
    engine = engine_of(model, keys, resume=resume, model_parameters=groups_of(model, what, is_wrong))
    for step in range(STEPS):
        if is_wrong and step == 2:
            if what == "end":
                return
            if what in ("SIGSTOP", "SIGKILL"):
                time.sleep(2)  # the others know what it does within a second
                os.kill(os.getpid(), getattr(signal, what))
            if what == "error":
                raise ValueError("no data")
            model.skips = what == "skip"
            if what == "values":
                engine.optimizer.param_groups[0]["lr"] = 0.25
        if what == "gathered" and step == 2:
            with sluice.zero.GatheredParameters(model.position, modifier_rank=0):
                if is_wrong:
                    raise ValueError("no data")
                time.sleep(2)
                os.kill(os.getpid(), signal.SIGKILL)  # it does not come to the end
        if what == "reads" and step == 2:
            if is_wrong:
                raise ValueError("no data")
            engine.module_state_dict()
        if what == "boundary" and step == 2:
            engine.set_gradient_accumulation_boundary(is_wrong)
        if what == "save" and step == 2 and is_wrong:
            engine.save_checkpoint(sys.argv[2])
        if what == "saves apart" and step == 2:
            engine.save_checkpoint("checkpoints")
        ids, targets = batch(step)
        if what == "drop":
            loss = loss_of(engine(ids), targets)
            del engine
            gc.collect()
            loss.backward()
            break
        engine.backward(loss_of(engine(ids), targets))
        if what == "half":
            break
        engine.step()
    if what == "late" and is_wrong:
        time.sleep(float(os.environ["SLUICE_RANK_TIMEOUT"]) + 1)  # work of its own; the other one waits at its exit
    print("all steps")


main()
