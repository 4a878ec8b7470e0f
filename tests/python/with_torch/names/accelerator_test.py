"""The accelerator of a process that computes on the CPU."""

from __future__ import annotations

import mmap
import os

import pytest
import torch

from sluice.accelerator import get_accelerator

accelerator = get_accelerator()
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")

MEBIBYTE = 1 << 20


def meminfo(key: str) -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":"))


def test_the_cpu_is_named_and_takes_what_scripts_do_to_a_device() -> None:
    assert accelerator.device_name() == accelerator.device_name(3) == accelerator.current_device_name() == "cpu"
    assert accelerator.communication_backend_name() == "gloo"
    assert accelerator.is_available()
    assert accelerator.is_synchronized_device()
    assert accelerator.device(0) == accelerator.device() == torch.device("cpu")
    value = torch.arange(3).to(accelerator.device())
    accelerator.synchronize()
    accelerator.synchronize(0)
    accelerator.empty_cache()
    assert value.tolist() == [0, 1, 2]
    assert accelerator.on_accelerator(value)
    assert not accelerator.on_accelerator(torch.empty(1, device="meta"))


def test_each_rank_of_a_host_has_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (accelerator.current_device(), accelerator.device_count()) == (0, 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # torchrun's
    accelerator.set_device(1)
    assert (accelerator.current_device(), accelerator.device_count()) == (1, 2)
    monkeypatch.setenv("LOCAL_SIZE", "4")  # of DeepSpeed's launcher
    assert accelerator.device_count() == 4


def test_random_numbers_are_those_of_pytorch() -> None:
    state = accelerator.get_rng_state()
    first = torch.rand(3)
    accelerator.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
    for seed in (accelerator.manual_seed, accelerator.manual_seed_all, accelerator.random().manual_seed):
        seed(1234)
        assert accelerator.initial_seed() == torch.initial_seed() == 1234
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(1234)))
    accelerator.set_rng_state(state, 0)
    assert torch.equal(torch.rand(3), first)


def test_memory_is_that_of_the_process_and_the_machine() -> None:
    before, most = accelerator.memory_allocated(), accelerator.max_memory_allocated()
    kept = mmap.mmap(-1, 64 * MEBIBYTE)  # the C library may have as much in its heap, which is resident then
    torch.frombuffer(kept, dtype=torch.uint8).fill_(1)
    grown = accelerator.memory_allocated() - before
    assert 60 * MEBIBYTE < grown < 100 * MEBIBYTE
    assert abs(accelerator.memory_reserved() - accelerator.memory_allocated()) < 8 * MEBIBYTE
    assert accelerator.max_memory_allocated(0) >= max(most, before + grown - MEBIBYTE)
    assert accelerator.max_memory_reserved() == accelerator.max_memory_allocated()
    del kept
    assert accelerator.max_memory_allocated() >= before + 60 * MEBIBYTE
    assert accelerator.total_memory() == meminfo("MemTotal")
    # Pages of files are available too: MemFree can be far below.
    assert abs(accelerator.available_memory() - meminfo("MemAvailable")) < 512 * MEBIBYTE
    assert accelerator.available_memory() <= accelerator.total_memory()


def test_data_types_are_those_that_engines_take() -> None:
    assert accelerator.is_bf16_supported()
    assert accelerator.is_fp16_supported()
    assert set(accelerator.supported_dtypes()) == {torch.float32, torch.bfloat16, torch.float16}


def test_nothing_is_pinned_where_the_cpu_computes() -> None:
    value = torch.ones(2)
    assert accelerator.pin_memory(value) is value
    assert accelerator.pin_memory(value, make_copy=False, match_shape=False) is value
    assert not accelerator.is_pinned(value)


def test_gpus_that_are_asked_for_and_missing_are_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cuda")
    gpus = get_accelerator()
    assert not gpus.is_available()
    assert gpus.device_count() == 0
    assert gpus.device(1) == torch.device("cuda", 1)
    assert gpus.communication_backend_name() == "nccl"
