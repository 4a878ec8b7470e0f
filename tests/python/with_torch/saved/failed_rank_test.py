"""Ranks load a checkpoint after an update that has failed on one of them only."""

from __future__ import annotations

from pathlib import Path

from ranks_test import run_text

# Weights of rank 1's half are large: there a rate of 1e38 with a decay leaves the range of fp32.
SCRIPT = """
import json, os, sys
import torch
import sluice
rank, place = int(os.environ["RANK"]), sys.argv[2]
log = os.path.join(place, f"log{rank}")
os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)  # of the extension's lines, too

def replaced_on(name, optimizer, keys, resume):
    model = torch.nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        model.weight[:32].fill_(0)
        model.weight[32:].fill_(5)
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 1.0}},
              "zero_optimization": {"stage": 3, "offload_optimizer": optimizer, "offload_param": {"device": "cpu"}},
              "sluice": {"device": "host", "host_bytes": "64MiB", **keys}}
    engine = sluice.initialize(model=model, config=config, resume=resume)[0]
    def step(number):
        x = torch.randn(2, 64, generator=torch.Generator().manual_seed(10 * number + rank)).bfloat16()
        loss = engine(x).float().square().mean()
        engine.backward(loss)
        engine.step()
        return loss.item()
    step(0)
    saved = os.path.join(place, "saved", name)
    engine.save_checkpoint(saved, client_state={"saved": name})
    expected = [step(1), step(2)]
    engine.load_checkpoint(saved)
    for group in engine.optimizer.param_groups:
        group["lr"] = 1e38
    step(1)
    assert engine.load_checkpoint(saved)[1] == {"saved": name}
    assert [step(1), step(2)] == expected
    engine.destroy()

drive = os.path.join(place, "drive")
if rank == 0:
    os.mkdir(drive)
sluice.init_distributed()
sluice.comm.barrier()
nvme = {"device": "nvme", "nvme_path": drive}
every = {"checkpoint_dir": os.path.join(place, "own"), "checkpoint_every": 1}
replaced_on("scratch", nvme, {}, None)
replaced_on("checkpoints", {"device": "cpu"}, every, False)
replaced_on("committed", nvme, {}, False)
line = "replaced by a checkpoint: " + "rank 1: " * (rank == 0) + "step 2: the update of weight"
open(os.path.join(place, str(rank)), "w").write(json.dumps(open(log).read().count(line)))
"""


def test_a_checkpoint_replaces_an_update_that_failed_on_one_rank(tmp_path: Path) -> None:
    assert run_text(SCRIPT, tmp_path) == [3, 3]
