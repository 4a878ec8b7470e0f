"""DeepSpeed's ``accelerator``: the device that computes."""

from __future__ import annotations

import os
import resource
from typing import Any

import torch

from .._environment.launcher import local_rank, take_variables
from .._refusals import missing

__all__ = ["Accelerator", "get_accelerator"]

_ranges: list[Any] = []  # of torch.profiler, that have begun


class Accelerator:
    """The device that computes, by the methods of DeepSpeed's accelerators: the CPU.

    Sizes are bytes. Memory is that of the process: its resident size, and the largest so far. There is nothing to
    wait for. An unknown name is an AttributeError.
    """

    def __getattr__(self, name: str) -> Any:
        raise missing("the accelerator of Sluice", name)

    def device_name(self, device_index: int | None = None) -> str:
        """The device in torch's words: "cpu"."""
        return "cpu"

    def current_device_name(self) -> str:
        """As :meth:`device_name`."""
        return self.device_name()

    def device(self, device_index: int | None = None) -> torch.device:
        """The device as torch's object."""
        return torch.device("cpu")

    def current_device(self) -> int:
        """The index of the device: that of the rank on its host, ``LOCAL_RANK``; 0 without a launcher."""
        return local_rank()

    def set_device(self, device_index: int) -> None:
        """Does nothing: every rank of a host computes on its CPU."""

    def device_count(self) -> int:
        """Ranks of this host, as the launcher says it; 1 without."""
        take_variables()
        return int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or "1")

    def is_available(self) -> bool:
        """True."""
        return True

    def is_synchronized_device(self) -> bool:
        """True: what is computed has ended when a call returns."""
        return True

    def synchronize(self, device_index: int | None = None) -> None:
        """Does nothing: computing ends before its call returns."""

    def empty_cache(self) -> None:
        """Does nothing: PyTorch caches no memory of the CPU."""

    @property
    def Stream(self) -> Any:  # noqa: N802
        """``torch.cpu.Stream``, which orders nothing: the CPU computes in the order of the calls."""
        return torch.cpu.Stream

    def stream(self, stream: Any) -> Any:
        """``torch.cpu.stream``: a context."""
        return torch.cpu.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        """``torch.cpu.current_stream``."""
        return torch.cpu.current_stream()

    default_stream = current_stream

    def range_push(self, msg: str) -> None:
        """Begins a range of torch.profiler. :meth:`range_pop` ends the one that was begun last."""
        entered = torch.profiler.record_function(msg)
        entered.__enter__()
        _ranges.append(entered)

    def range_pop(self) -> None:
        """Ends a range of :meth:`range_push`."""
        _ranges.pop().__exit__(None, None, None)

    def random(self) -> Any:
        """``torch.random``."""
        return torch.random

    def manual_seed(self, seed: int) -> torch.Generator:
        """``torch.manual_seed``."""
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        """``torch.initial_seed``."""
        return torch.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """``torch.get_rng_state``."""
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """``torch.set_rng_state``."""
        torch.set_rng_state(new_state)

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Resident bytes of the process."""
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """The largest resident size of the process so far, or since :meth:`reset_peak_memory_stats`, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved = memory_cached = memory_allocated
    max_memory_reserved = max_memory_cached = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """The largest size begins anew at the present one. Raises OSError where Linux does not allow it."""
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # proc(5): resets the peak resident size

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of memory of the machine."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of the machine's memory that can be had without swapping: pages of files count."""
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))

    def is_bf16_supported(self) -> bool:
        """True."""
        return True

    def is_fp16_supported(self) -> bool:
        """True."""
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        """Data types of weights."""
        return [torch.float32, torch.bfloat16, torch.float16]

    def communication_backend_name(self) -> str:
        """The backend of ``torch.distributed``: "gloo"."""
        return "gloo"

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """The tensor itself: the device that computes reads host memory."""
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in page-locked memory."""
        return tensor.is_pinned()

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is where the device computes."""
        return tensor.device.type == "cpu"


class CudaAccelerator(Accelerator):
    """The GPUs of PyTorch, by the methods of DeepSpeed's accelerators.

    Memory is that of PyTorch's tensors. Weights, gradients and states that Sluice keeps on the GPU are beside it, in the
    report of an engine.
    """

    def device_name(self, device_index: int | None = None) -> str:
        """The device in torch's words: "cuda", "cuda:1"."""
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        """As "cuda:1"."""
        return self.device_name(torch.cuda.current_device())

    def device(self, device_index: int | None = None) -> torch.device:
        """The device as torch's object."""
        return torch.device(self.device_name(device_index))

    def current_device(self) -> int:
        """The index of the current GPU."""
        return torch.cuda.current_device()

    def set_device(self, device_index: int) -> None:
        """``torch.cuda.set_device``."""
        torch.cuda.set_device(device_index)

    def device_count(self) -> int:
        """GPUs that CUDA_VISIBLE_DEVICES leaves."""
        return torch.cuda.device_count()

    def is_available(self) -> bool:
        """``torch.cuda.is_available``."""
        return torch.cuda.is_available()

    def is_synchronized_device(self) -> bool:
        """False: calls return before their work has ended."""
        return False

    def synchronize(self, device_index: int | None = None) -> None:
        """``torch.cuda.synchronize``."""
        torch.cuda.synchronize(device_index)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        torch.cuda.empty_cache()

    @property
    def Stream(self) -> Any:  # noqa: N802
        """``torch.cuda.Stream``."""
        return torch.cuda.Stream

    @property
    def Event(self) -> Any:  # noqa: N802
        """``torch.cuda.Event``."""
        return torch.cuda.Event

    def stream(self, stream: Any) -> Any:
        """``torch.cuda.stream``: a context."""
        return torch.cuda.stream(stream)

    def current_stream(self, device_index: int | None = None) -> Any:
        """``torch.cuda.current_stream``."""
        return torch.cuda.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> Any:
        """``torch.cuda.default_stream``."""
        return torch.cuda.default_stream(device_index)

    def range_push(self, msg: str) -> None:
        """``torch.cuda.nvtx.range_push``."""
        torch.cuda.nvtx.range_push(msg)

    def range_pop(self) -> None:
        """``torch.cuda.nvtx.range_pop``."""
        torch.cuda.nvtx.range_pop()

    def manual_seed(self, seed: int) -> Any:
        """``torch.cuda.manual_seed``."""
        return torch.cuda.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> Any:
        """``torch.cuda.manual_seed_all``."""
        return torch.cuda.manual_seed_all(seed)

    def initial_seed(self) -> int:
        """``torch.cuda.initial_seed``."""
        return torch.cuda.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        """``torch.cuda.get_rng_state``."""
        return torch.cuda.get_rng_state(self.device_name(device_index))

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        """``torch.cuda.set_rng_state``."""
        torch.cuda.set_rng_state(new_state, self.device_name(device_index))

    def memory_allocated(self, device_index: int | None = None) -> int:
        """``torch.cuda.memory_allocated``."""
        return torch.cuda.memory_allocated(device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """``torch.cuda.max_memory_allocated``."""
        return torch.cuda.max_memory_allocated(device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        """``torch.cuda.memory_reserved``."""
        return torch.cuda.memory_reserved(device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        """``torch.cuda.max_memory_reserved``."""
        return torch.cuda.max_memory_reserved(device_index)

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def total_memory(self, device_index: int | None = None) -> int:
        """Bytes of the GPU's memory."""
        return int(torch.cuda.get_device_properties(self.device_name(device_index)).total_memory)

    def available_memory(self, device_index: int | None = None) -> int:
        """Bytes of the GPU's memory that are free."""
        return torch.cuda.mem_get_info(device_index)[0]

    def is_bf16_supported(self) -> bool:
        """``torch.cuda.is_bf16_supported``."""
        return torch.cuda.is_bf16_supported()

    def communication_backend_name(self) -> str:
        """The backend of ``torch.distributed``: "nccl"."""
        return "nccl"

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        """A copy in page-locked memory. ``make_copy`` False: without the values; ``match_shape`` False: and flat."""
        if make_copy:
            return tensor.pin_memory()
        return torch.empty(tensor.shape if match_shape else (tensor.numel(),), dtype=tensor.dtype, pin_memory=True)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on a GPU."""
        return tensor.is_cuda


_accelerators: dict[str, Accelerator] = {}


def get_accelerator() -> Accelerator:
    """The device that computes: GPUs where PyTorch has some, else the CPU. DS_ACCELERATOR=cpu or cuda chooses.

    Raises ValueError for another value of DS_ACCELERATOR.
    """
    name = os.environ.get("DS_ACCELERATOR") or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ValueError(f"DS_ACCELERATOR={name}: there are cpu and cuda")
    if name not in _accelerators:
        _accelerators[name] = CudaAccelerator() if name == "cuda" else Accelerator()
    return _accelerators[name]


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
