"""Ranks load a checkpoint after an update that has failed on one of them only, or where the part of one of them is damaged."""

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


# A part that is cut is found before any rank has replaced a state; a byte that has changed is found on the way.
DAMAGED = """
import glob, json, os, sys
sys.path.insert(0, sys.argv[1])
from small_models import config, engine_of, make, train
import sluice
rank, place = int(os.environ["RANK"]), sys.argv[2]
engine = engine_of(make(), config())
train(engine, range(1))
engine.save_checkpoint(place, tag="whole")
for tag in ("without", "cut", "changed"):
    engine.save_checkpoint(place, tag=tag)
    if rank == 0:
        states, = glob.glob(os.path.join(place, tag, "step-*", "rank1-of-2", "states*"))
        if tag == "without":
            os.unlink(states)
        elif tag == "cut":
            os.truncate(states, os.path.getsize(states) // 2)
        else:
            with open(states, "r+b") as file:
                file.seek(4096)
                byte = file.read(1)
                file.seek(4096)
                file.write(bytes([byte[0] ^ 1]))
sluice.comm.barrier()
expected = train(engine, range(1, 2))
found = []
for tag in ("without", "cut", "changed"):
    engine.load_checkpoint(place, tag="whole")
    try:
        engine.load_checkpoint(place, tag=tag)
    except (RuntimeError, OSError) as error:
        assert "rank1-of-2" in str(error), error
    else:
        raise AssertionError(tag)
    try:
        found.append(train(engine, range(1, 2)) == expected)
    except sluice.StorageError as error:
        found.append("loaded in part only" in str(error) and "in part")
engine.load_checkpoint(place, tag="whole")
assert train(engine, range(1, 2)) == expected
engine.destroy()
open(os.path.join(place, str(rank)), "w").write(json.dumps(found))
"""


def test_a_part_that_is_damaged_on_one_rank_costs_what_one_rank_loses(tmp_path: Path) -> None:
    assert run_text(DAMAGED, tmp_path) == [[True, True, "in part"]] * 2
