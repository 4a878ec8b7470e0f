"""Checks of engines on a GPU, as a script that has used the GPU before and goes on to use it: gpu_script.py [CHECK...].

It needs sluice and PyTorch, and no pytest. Prints a line for each check; ends with 1 when one fails. --list prints their names.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from small_models import Tied, batch, config, differences, loss_of, make

import sluice

STEPS = 5
RANKS_SECONDS = 90.0  # that ranks have to end


def engine_on(tier: str, folder: Path, model: Any = None, **keys: Any) -> Any:
    source = config(tier, folder, gradient_clipping=1.0, sluice={"deterministic": True}, **keys)
    engine = sluice.initialize(model=make(Tied) if model is None else model, config=source)[0]
    assert engine.device.type == "cuda", engine.report()["choices"]
    return engine


def train(engine: Any, micro_batches: int = STEPS) -> list[float]:
    losses = []
    for step in range(micro_batches):
        ids, targets = (part.to(engine.device) for part in batch(step))
        loss = loss_of(engine(ids), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def train_plain(model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        ids, targets = (part.cuda() for part in batch(step))
        loss = loss_of(model(ids), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def the_script_uses_the_gpu_before_and_after(folder: Path) -> None:
    torch.cuda.set_device(0)
    kept = torch.ones(1 << 20, device="cuda")
    engine = engine_on("cpu", folder)
    assert engine.device == torch.device("cuda", 0)
    train(engine)
    assert torch.cuda.max_memory_allocated() > kept.nbytes
    engine.destroy()
    assert (kept + 1).sum().item() == 2 << 20


def tiers_have_equal_bits_and_the_losses_of_plain_pytorch(folder: Path) -> None:
    courses = []
    for tier in ("device", "cpu", "nvme"):
        engine = engine_on(tier, folder)
        courses.append(train(engine))
        engine.destroy()
    assert courses[0] == courses[1] == courses[2], courses
    assert differences(courses[0], train_plain(make(Tied).cuda())) < 1e-5


def a_model_may_be_on_the_gpu_already(folder: Path) -> None:
    here, there = engine_on("cpu", folder), engine_on("cpu", folder, make(Tied).cuda())
    assert train(here) == train(there)
    assert {value.device.type for value in there.module_state_dict().values()} == {"cpu"}


def bf16_and_activation_checkpointing_train(folder: Path) -> None:
    model = make(Tied)
    for block in model.blocks:
        plain = block.forward
        block.forward = lambda x, plain=plain: torch.utils.checkpoint.checkpoint(plain, x, use_reentrant=False)
    losses = train(engine_on("cpu", folder, model, bf16={"enabled": True}))
    assert losses == train(engine_on("cpu", folder, bf16={"enabled": True}))


def gradients_add_up_on_the_gpu(folder: Path) -> None:
    courses = {}
    for tier in ("device", "cpu"):
        engine = engine_on(tier, folder, gradient_accumulation_steps=3)
        courses[tier] = train(engine, 3 * STEPS)
        has_sums = any("add up on the device" in choice for choice in engine.report()["choices"])
        assert has_sums == (tier == "cpu"), engine.report()["choices"]
        engine.destroy()
    assert courses["cpu"] == courses["device"], courses


def the_gpu_keeps_the_states_that_ratio_leaves_to_it(folder: Path) -> None:
    courses = []
    for ratio in (1, 0.3, 0):
        zero = config("cpu")["zero_optimization"]
        zero["offload_optimizer"]["ratio"] = ratio
        engine = engine_on("cpu", folder, zero_optimization=zero)
        courses.append(train(engine))
        kept = any("the GPU keeps and updates" in choice for choice in engine.report()["choices"])
        assert kept == (ratio < 1), engine.report()["choices"]
        engine.destroy()
    assert courses[0] == courses[1] == courses[2], courses


def another_stream_is_refused(folder: Path) -> None:
    engine = engine_on("cpu", folder)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            engine(batch(0)[0].cuda())
    except ValueError as error:
        assert "another CUDA stream" in str(error)
        return
    raise AssertionError("nothing was said")


def a_gathered_parameter_takes_data_of_the_host(folder: Path) -> None:
    engine = engine_on("cpu", folder, bf16={"enabled": True})
    weight, bias = engine.module.blocks[0].norm.weight, engine.module.blocks[0].norm.bias
    with sluice.zero.GatheredParameters([weight, bias], modifier_rank=0):
        weight.data = torch.full(weight.shape, 0.5)
        with sluice.zero.GatheredParameters(bias, modifier_rank=0):
            bias.data = torch.full(bias.shape, 0.25)
        assert bias.device == engine.device and bias.tolist() == [0.25] * bias.numel()
    for parameter, value in ((weight, 0.5), (bias, 0.25)):
        assert torch.equal(sluice.utils.safe_get_full_fp32_param(parameter), torch.full(parameter.ds_shape, value))
    train(engine)


def run_ranks(place: Path, ranks: int, device: str) -> list[list[Any]]:
    """Runs rank_script.py on each rank; returns the losses and norms, weights and states of each."""
    sys.path.append(str(Path(__file__).parents[1]))
    from forked import free_port

    asked: dict[str, Any] = {"tier": "nvme", "keys": {}, "frozen": False, "tied": False, "load": False, "resume": False}
    asked |= {"place": str(place), "device": device, "steps": 4, "save": -1, "micro_batches": 2}
    (place / "drive").mkdir(parents=True)
    variables = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    script = [sys.executable, str(Path(__file__).parent / "rank_script.py"), json.dumps(asked)]
    started: list[subprocess.Popen[bytes]] = []
    logs = [place / f"rank{rank}.log" for rank in range(ranks)]
    try:
        for rank, log in enumerate(logs):
            own = {name: str(value) for name, value in {**variables, "RANK": rank, "LOCAL_RANK": rank}.items()}
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(own if ranks > 1 else {})}
            with log.open("w") as output:
                started.append(subprocess.Popen(script, env=environment, stdout=output, stderr=output))
        until = time.monotonic() + RANKS_SECONDS
        with contextlib.suppress(subprocess.TimeoutExpired):
            for each in started:
                each.wait(max(0.0, until - time.monotonic()))
    finally:  # none stays on the GPU
        for each in started:
            each.kill()
            each.wait()
    ends = [each.returncode for each in started]
    said = [log.read_text(errors="replace") for log in logs]
    assert not any(ends), "\n".join([f"the ranks ended with {ends}, after at most {RANKS_SECONDS:.0f} s", *said])
    return [torch.load(place / f"rank{rank}.pt") for rank in range(ranks)]


# Two micro-batches of one rank are added in fp32 one after the other, as those of two ranks are.
def two_ranks_share_the_gpu_with_the_bits_of_one(folder: Path, device: str = "cuda:0") -> None:
    (one,) = run_ranks(folder / "one", 1, device)
    for mine in run_ranks(folder / "two", 2, device):
        assert [loss for loss, _ in mine[0]] == [loss for loss, _ in one[0]]
        assert differences([norm for _, norm in mine[0]], [norm for _, norm in one[0]]) < 1e-6
        assert all(torch.equal(mine[1][name], value) for name, value in one[1].items())
        assert all(torch.equal(part, other) for part, other in zip(mine[2:4], one[2:4], strict=True))


CHECKS = {
    check.__name__: check
    for check in (
        the_script_uses_the_gpu_before_and_after,
        tiers_have_equal_bits_and_the_losses_of_plain_pytorch,
        a_model_may_be_on_the_gpu_already,
        bf16_and_activation_checkpointing_train,
        gradients_add_up_on_the_gpu,
        the_gpu_keeps_the_states_that_ratio_leaves_to_it,
        another_stream_is_refused,
        a_gathered_parameter_takes_data_of_the_host,
        two_ranks_share_the_gpu_with_the_bits_of_one,
    )
}


def main(names: list[str]) -> int:
    if names == ["--list"]:
        print(*(f"check {name}" for name in CHECKS), sep="\n")
        return 0
    failed = 0
    for name in names or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                CHECKS[name](Path(folder))
                print(f"passed {name}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
