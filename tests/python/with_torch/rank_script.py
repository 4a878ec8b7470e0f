"""One rank of ranks_test.py and gpu_script.py: trains, and writes its losses and weights. Arguments: the test's, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

if json.loads(sys.argv[1]).get("without_numpy"):
    sys.modules["numpy"] = None  # type: ignore[assignment]  # as where it is not installed

import torch
from small_models import batch, config, engine_of, loss_of, make

from sluice import comm, init_distributed, utils, zero


def main() -> None:
    asked = json.loads(sys.argv[1])
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:
        init_distributed()  # mpirun started the ranks
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    place = Path(asked["place"])
    model = make()
    with torch.no_grad():
        model.norm.weight.add_(rank)  # rank 0's values count
    if not asked["tied"]:
        model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    if asked["frozen"]:
        model.blocks[1].requires_grad_(False)
    keys = config(asked["tier"], place / "drive", **asked["keys"])
    keys["train_micro_batch_size_per_gpu"] = 2
    keys["sluice"]["threads"] = {"compute": 1}  # equal bits at any number of ranks
    if "device" in asked:
        keys["sluice"] |= {"device": asked["device"], "deterministic": True}
    keys["gradient_accumulation_steps"] = asked["micro_batches"] // ranks
    engine = engine_of(model, keys, **({"resume": True} if asked["resume"] else {}))
    if asked["load"]:
        engine.load_checkpoint(str(place / "saved"), **asked.get("load_arguments", {}))
    losses, gradient = [], None
    for step in range(engine.global_steps, asked["steps"]):
        for part in range(engine.gradient_accumulation_steps()):
            ids, targets = (values.to(engine.device) for values in batch(step * 100 + part * ranks + rank))
            rate = engine.get_lr()[0]
            if asked.get("differ") and rank == 1 and step % 2 == 1:
                engine.set_lr(2 * rate)  # this rank expects another step
            engine.backward(loss_of(engine(ids), targets))
            engine.set_lr(rate)
            if part == 0 and asked.get("sees_gradients", True):
                gradient = utils.safe_get_full_grad(engine.module.blocks[0].up.weight)
            engine.step()
        losses.append([engine._last.loss, engine._last.gradient_norm])
        if step == asked["save"]:
            engine.save_checkpoint(str(place / "saved"))
    if "device" in asked:  # where a shard may lie, too
        weight = engine.module.blocks[0].up.weight
        utils.safe_set_local_fp32_param(weight, utils.safe_get_local_fp32_param(weight).to(engine.device))
    master = utils.safe_get_full_fp32_param(engine.module.blocks[0].up.weight)
    moment = utils.safe_get_full_optimizer_state(engine.module.blocks[0].up.weight, "exp_avg")
    with zero.GatheredParameters(engine.module.norm.bias, modifier_rank=0), torch.no_grad():
        engine.module.norm.bias.fill_(rank + 5)
    weights = engine.module_state_dict()
    calls = comm.log_summary(return_dict=True) if "comms_logger" in keys else None
    report = engine.report()
    early = [report["speculative_updates_kept"], report["speculative_updates_dropped"]]
    torch.save([losses, weights, master, moment, gradient, calls, early], place / f"rank{rank}.pt")
    engine.destroy()


main()
