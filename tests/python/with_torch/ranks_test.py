"""Ranks train what one rank trains, by whatever starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import free_port, run_ranks

SCRIPT = Path(__file__).parent / "rank_script.py"


PATH = f"{os.environ.get('PATH', '')}:{os.defpath}"
# By name: Open MPI takes the path of its program as the folder that it is installed in, and refuses that of /bin.
MPIRUN = "mpirun" if shutil.which("mpirun", path=PATH) else None


def run(
    place: Path, ranks: int, tier: str = "cpu", load: bool = False, steps: int = 4, by: str | None = None, **asked: Any
) -> list[Any]:
    """What each rank has written. ``by``: torchrun, or the program mpirun; None: forks of a process that has PyTorch."""
    (place / "drive").mkdir(parents=True, exist_ok=True)
    spec = {"micro_batches": 2, "keys": {}, "save": -1, "resume": False, "frozen": False, "tied": True, **asked}
    arguments = json.dumps({**spec, "place": str(place), "tier": tier, "load": load, "steps": steps})
    if by is None:
        run_ranks(ranks, SCRIPT, arguments)
    else:
        launch = [sys.executable, "-W", "ignore"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if by == "torchrun":
            launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        else:
            launch = [by, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *launch]
            environment |= {"MASTER_PORT": str(free_port()), "PATH": PATH}
        result = subprocess.run(
            [*launch, str(SCRIPT), arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    return [torch.load(place / f"rank{rank}.pt") for rank in range(ranks)]


def assert_equal(mine: Any, theirs: Any) -> None:
    assert mine[0] == theirs[0]
    assert all(torch.equal(mine[1][name], theirs[1][name]) for name in theirs[1])
    assert all(torch.equal(a, b) for a, b in zip(mine[2:4], theirs[2:4], strict=True))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two ranks have written, with all as it is by itself."""
    return run(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun (package openmpi-bin)")
def test_ranks_of_mpirun_train_as_others(two: list[Any], tmp_path: Path) -> None:
    for mine in run(tmp_path, 2, by=MPIRUN):
        assert_equal(mine, two[0])


def test_ranks_of_torchrun_train_as_others(two: list[Any], tmp_path: Path) -> None:
    for mine in run(tmp_path, 2, by="torchrun"):
        assert_equal(mine, two[0])


# Each rank decides for itself whether it keeps an update that began in backward.
def test_updates_that_begin_in_backward_have_the_bits_of_others(two: list[Any], tmp_path: Path) -> None:
    keys = {"sluice": {"device": "host", "speculative_bytes": "auto"}}
    ranks = run(tmp_path, 2, keys=keys, differ=True)
    for mine in ranks:
        assert_equal(mine, two[0])
        assert mine[6][0] > 0
    assert ranks[1][6][1] > ranks[0][6][1]


def test_ranks_need_no_numpy(tmp_path: Path) -> None:
    keys = {"comms_logger": {"enabled": True}}
    for mine in run(tmp_path, 2, steps=1, by="torchrun", without_numpy=True, keys=keys):
        assert sent([mine], "all_gather") > 0


# A rank that has its host to itself has more memory to plan with than two that share one.
PLANNING = """
import json, os, sys
if os.environ["RANK"] == "1":
    os.environ["LOCAL_WORLD_SIZE"], os.environ["LOCAL_RANK"] = "1", "0"
sys.path.insert(0, sys.argv[1])
from small_models import Tied, batch, engine_of, loss_of, make
engine = engine_of(make(Tied))
ids, targets = batch(0)
engine.backward(loss_of(engine(ids), targets))
budget = engine.report()["plan"]["budget_bytes"]
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write(json.dumps(budget))
"""


def run_text(text: str, place: Path) -> list[Any]:
    """What each of two ranks of a script writes as JSON to the file of its number."""
    script = place / "script.py"
    script.write_text(text)
    run_ranks(2, script, SCRIPT.parent, place)
    return [json.loads((place / str(rank)).read_text()) for rank in range(2)]


def test_all_ranks_plan_for_the_poorest(tmp_path: Path) -> None:
    budgets = run_text(PLANNING, tmp_path)
    assert budgets[0]["host"] > 0
    assert budgets[0] == budgets[1]


ENGINES = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from small_models import config, engine_of, make, train
import sluice
counts = []
for number in range(3):
    sluice.plan(make(), config())
    engine = engine_of(make(), config())
    train(engine, range(1))
    engine.destroy()
    counts.append([len(os.listdir("/proc/self/" + name)) for name in ("fd", "task")])
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write(json.dumps(counts))
"""


def test_engines_and_plans_leave_no_connections_and_threads(tmp_path: Path) -> None:
    for counts in run_text(ENGINES, tmp_path):
        assert all(after < before + 4 for before, after in zip(counts[1], counts[2], strict=True))  # a group has more


LEFT = """
import gc, json, os, sys
sys.path.insert(0, sys.argv[1])
from small_models import batch, config, engine_of, loss_of, make, train
import sluice

def dropped():
    train(engine_of(make(blocks=1)), range(1))

def dropped_between_passes():
    engine = engine_of(make(blocks=1))
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))

def no_scheduler():
    engine_of(make(blocks=1), lr_scheduler=lambda optimizer: 1 / 0)

def does_not_fit():
    engine_of(make(blocks=1), config(sluice={"device": "host", "host_bytes": "1KiB"}))

def no_plan_fits():
    sluice.plan(make(blocks=1), config(sluice={"device": "host", "host_bytes": "1KiB"}))

def another_model():
    engine_of(make(blocks=1 + int(os.environ["RANK"])))

def no_loss_scale():
    sluice.offload(make(blocks=1), config(fp16={"enabled": True}))

counts = {}
for how in (dropped, dropped_between_passes, no_scheduler, does_not_fit, no_plan_fits, another_model, no_loss_scale):
    counts[how.__name__] = []
    for number in range(3):
        try:
            how()
        except (ZeroDivisionError, ValueError, sluice.Error):
            pass
        gc.collect()
        counts[how.__name__].append([len(os.listdir("/proc/self/" + name)) for name in ("fd", "task")])
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write(json.dumps(counts))
"""


def test_engines_that_are_dropped_or_cannot_be_made_leave_no_connections_and_threads(tmp_path: Path) -> None:
    for counts in run_text(LEFT, tmp_path):
        for how, (_, before, after) in counts.items():
            assert all(late < early + 4 for early, late in zip(before, after, strict=True)), (how, before, after)


# A default group that sends no values in host memory, as one of NCCL: here one that sends nothing.
ANOTHER_GROUP = """
import os, sys
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from small_models import batch, engine_of, loss_of, make
from sluice import utils, zero
rank = int(os.environ["RANK"])
dist.init_process_group("fake", store=dist.FileStore(sys.argv[2] + "/meet", 2), rank=rank, world_size=2)
model = make(blocks=1)
with torch.no_grad():
    model.norm.weight.add_(rank)
engine = engine_of(model)
weight, bias = engine.module.norm.weight, engine.module.norm.bias
assert torch.equal(utils.safe_get_full_fp32_param(weight), make(blocks=1).norm.weight)
with zero.GatheredParameters(bias, modifier_rank=1), torch.no_grad():
    bias.fill_(rank)
assert torch.equal(utils.safe_get_full_fp32_param(bias), torch.ones(64))
utils.safe_set_local_fp32_param(bias, torch.full((32,), float(rank)))
assert utils.safe_get_full_fp32_param(bias).tolist() == [0.0] * 32 + [1.0] * 32
engine.save_checkpoint(sys.argv[2])
engine.destroy()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write("null")
"""


def test_a_default_group_need_not_send_values_in_host_memory(tmp_path: Path) -> None:
    run_text(ANOTHER_GROUP, tmp_path)


UNPICKLED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from small_models import batch, engine_of, loss_of, make
rank = int(os.environ["RANK"])
engine = engine_of(make(blocks=1))
try:
    engine.save_checkpoint(sys.argv[2], client_state={"f": 1 if rank else lambda: None})
except Exception as error:
    assert ("rank 0 has failed: " in str(error)) == (rank == 1), error
else:
    raise AssertionError("a checkpoint without its client_state")
ids, targets = batch(rank)
engine.backward(loss_of(engine(ids), targets))
engine.step()
engine.save_checkpoint(sys.argv[2], client_state={"f": 1})
engine.destroy()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write("null")
"""


def test_a_client_state_that_cannot_be_pickled_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    run_text(UNPICKLED, tmp_path)
    assert (tmp_path / "latest").read_text() == "global_step1"


ASKED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from small_models import batch, engine_of, loss_of, make
from sluice import utils
rank = int(os.environ["RANK"])
calls = {
    "the master weights": utils.safe_get_full_fp32_param,
    "exp_avg_sq": lambda parameter: utils.safe_get_full_optimizer_state(parameter, "exp_avg_sq"),
    "the gradient": utils.safe_get_full_grad,
}
for kind, call in calls.items():
    engine = engine_of(make(blocks=1))
    ids, targets = batch(rank)
    engine.backward(loss_of(engine(ids), targets))
    norm = engine.module.norm
    try:
        call(norm.bias if rank else norm.weight)
    except RuntimeError as error:
        for name in ("norm.weight", "norm.bias"):
            assert f"(all_reduce of {kind} of parameter {name}, 64 elements)" in str(error), error
    else:
        raise AssertionError("a mixture of two parameters")
    engine.destroy()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write("null")
"""


# Else each would get the parts of both: a loop over a set of parameters has another order in each process.
def test_ranks_that_ask_for_several_parameters_are_told_so(tmp_path: Path) -> None:
    run_text(ASKED, tmp_path)


# Two micro-batches of one rank are added one after the other, as those of two ranks are. A tied weight has two gradients
# in each micro-batch, which one rank adds in another order; so has the norm, which clips.
@pytest.mark.parametrize(("tied", "clip", "frozen"), [(False, 0.0, False), (False, 0.0, True), (True, 0.0, False), (False, 1.0, True)])
def test_two_ranks_train_as_one(tied: bool, clip: float, frozen: bool, tmp_path: Path) -> None:
    asked = {"keys": {"gradient_clipping": clip}, "frozen": frozen, "tied": tied}
    (one,) = run(tmp_path / "one", 1, **asked)
    two = run(tmp_path / "two", 2, **asked)
    assert_equal(two[0], two[1])
    bits = not tied and not clip
    for (loss, norm), (other_loss, other_norm) in zip(two[0][0], one[0], strict=True):
        assert loss == pytest.approx(other_loss, rel=1e-15 if bits else 1e-6)
        assert norm == pytest.approx(other_norm, rel=1e-6)
    for name, value in one[1].items():
        mine = two[0][1][name]
        assert torch.equal(mine, value) if bits else torch.allclose(mine, value, rtol=1e-4, atol=1e-6)
    assert torch.equal(two[0][1]["norm.bias"], torch.full((64,), 5.0))


@pytest.mark.long
@pytest.mark.parametrize(("precision", "ranks"), [("fp32", 2), ("bf16", 4)])
def test_tiers_have_equal_bits(precision: str, ranks: int, tmp_path: Path) -> None:
    keys = {"gradient_clipping": 1.0, **({"bf16": {"enabled": True}} if precision == "bf16" else {})}
    courses = [run(tmp_path / tier, ranks, tier, keys=keys, micro_batches=8, steps=2) for tier in ("device", "cpu", "nvme")]
    for course in courses:
        for mine in course:
            assert_equal(mine, courses[0][0])


def test_gradients_are_means_over_the_ranks(tmp_path: Path) -> None:
    (one,) = run(tmp_path / "one", 1, micro_batches=1, steps=1)
    two = run(tmp_path / "two", 2, micro_batches=2, steps=1)
    assert torch.equal(two[0][4], two[1][4])
    assert not torch.equal(two[0][4], one[4])  # another batch on rank 1


def sent(course: list[Any], operation: str) -> int:
    """Bytes of the operation's calls, as ``sluice.comm.log_summary`` has them."""
    rows = course[0][5]["summary"][operation]
    return sum(size * row["count"] for size, row in rows.items())


@pytest.mark.long
def test_gradients_are_divided_and_sent_as_their_keys_say(tmp_path: Path) -> None:
    def course(name: str, **keys: Any) -> list[Any]:
        return run(tmp_path / name, 2, steps=1, keys={"comms_logger": {"enabled": True}, **keys})

    plain = course("plain")
    assert_equal(course("before", prescale_gradients=True)[1], plain[1])  # by two: no bit changes
    summed = course("sum", gradient_allreduce_op="sum")
    assert torch.equal(summed[0][4], 2 * plain[0][4])
    assert summed[0][0][0][1] == pytest.approx(2 * plain[0][0][0][1], rel=1e-6)
    narrow = course("narrow", communication_data_type="bf16")
    assert narrow[0][0][0][0] == plain[0][0][0][0]
    assert not torch.equal(narrow[0][4], plain[0][4])
    # Two parts are rounded to 2^-9 of their size, and may cancel in the sum.
    assert torch.allclose(narrow[0][4], plain[0][4], rtol=0, atol=2**-7 * float(plain[0][4].abs().max()))
    assert 2 * sent(narrow, "reduce_scatter") == sent(plain, "reduce_scatter")
    assert sent(narrow, "all_gather") == sent(plain, "all_gather")
    assert narrow[0][5]["metadata"]["world_size"] == 2


def test_a_checkpoint_of_two_ranks_continues(tmp_path: Path) -> None:
    whole = run(tmp_path, 2, "nvme", steps=6, save=2)
    resumed = run(tmp_path, 2, "nvme", load=True, steps=6)
    assert resumed[0][0] == whole[0][0][3:]
    assert (tmp_path / "saved" / "global_step3" / "step-00000003" / "rank1-of-2").is_dir()


ANOTHER_NUMBER = pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), pytest.param(2, 4, marks=pytest.mark.long)])


def assert_equal_states(mine: Any, theirs: Any) -> None:
    assert all(torch.equal(mine[1][name], theirs[1][name]) for name in theirs[1])
    assert torch.equal(mine[2], theirs[2])
    assert torch.equal(mine[3], theirs[3])


@ANOTHER_NUMBER
def test_a_checkpoint_continues_on_another_number_of_ranks(before: int, after: int, tmp_path: Path) -> None:
    saved = run(tmp_path, before, "nvme", steps=2, save=1, micro_batches=4)
    loaded = run(tmp_path, after, "cpu", load=True, steps=2, micro_batches=4)
    for mine in loaded:
        assert_equal_states(mine, saved[0])
    whole = run(tmp_path / "whole", before, steps=3, micro_batches=4)
    went_on = run(tmp_path, after, "cpu", load=True, steps=3, micro_batches=4)
    assert went_on[0][0][0] == pytest.approx(whole[0][0][2], rel=1e-6)


@ANOTHER_NUMBER
def test_a_swap_directory_continues_on_another_number_of_ranks(before: int, after: int, tmp_path: Path) -> None:
    first = run(tmp_path, before, "nvme", resume=True, steps=2, micro_batches=4)
    resumed = run(tmp_path, after, "nvme", resume=True, steps=0, micro_batches=4)
    for mine in resumed:
        assert torch.equal(mine[2], first[0][2])
        assert torch.equal(mine[3], first[0][3])
    drive = tmp_path / "drive"
    assert (drive / "ranks.json").exists() == (after > 1)
    assert (drive / "manifest.json").exists() == (after == 1)
    assert sorted(folder.name for folder in drive.glob("rank*-of-*")) == [f"rank{rank}-of-{after}" for rank in range(after) if after > 1]
