"""What the host optimizers have in common: the loop over PyTorch's parameters. The kernels are in `sluice._core`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .. import _core
from . import _foreign_groups

if TYPE_CHECKING:
    import torch
else:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the optimizers of sluice.ops need PyTorch, which is not installed here: pip install torch", name="torch"
        ) from error

_TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}

_Config = Any  # a configuration of _core


class HostOptimizer(torch.optim.Optimizer):
    """An optimizer whose parameters, gradients and states are in host memory.

    Parameters are fp32, bf16 or fp16, contiguous and on the CPU; gradients have their type. Formulas are computed in
    fp32. A parameter in 16 bits is rounded to nearest, ties to even, after each step. States are fp32, or, with
    ``fp32_optimizer_states=False``, of the parameter's type; bf16 states are rounded stochastically, and fp16 states are
    not supported. A step releases the GIL and uses ``torch.get_num_threads()`` threads, as of the construction.
    """

    _settings: tuple[str, ...] = ("fp32_optimizer_states",)  # members beside the groups, kept in copies
    _formula = ""  # the class of torch.optim with this formula, whose groups are taken

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], fp32_optimizer_states: bool = True) -> None:
        self.fp32_optimizer_states = fp32_optimizer_states
        super().__init__(params, defaults)
        self._steps = _core.HostSteps(torch.get_num_threads())
        for group in self.param_groups:
            _core.check_optimizer(self._config(group))

    def _config(self, group: dict[str, Any]) -> _Config:
        """The formula of a group and its constants."""
        raise NotImplementedError

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of a group's states, in the order of the kernels' moments."""
        raise NotImplementedError

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as PyTorch's. Raises ValueError for one that an optimizer of another formula made."""
        if isinstance(param_group, dict):
            _foreign_groups.check(param_group, len(self.param_groups), type(self).__name__, self._formula)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        ``closure``: computes the loss again, with gradients; its result is returned.

        Raises AssertionError for a parameter that is not on the CPU; ValueError for a parameter or gradient that is not
        contiguous, sparse, or of another type; and ValueError for a rate or constant out of range, or for a group with
        maximize or lr_decay, which only an engine's step has. Warns when a parameter or state becomes non-finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first_element = 0
        for number, group in enumerate(self.param_groups):
            first_element = self._step_group(number, group, first_element)
        return loss

    def _step_group(self, number: int, group: dict[str, Any], first_element: int) -> int:
        _foreign_groups.check_step(group, number, type(self).__name__, self.defaults)
        config, names = self._config(group), self._state_names(group)
        batches: dict[tuple[int, str, str], list[tuple[int, tuple[int, int, list[int], int, int]]]] = {}
        held = []  # another thread may replace tensors while a step runs without the GIL
        for index, parameter in enumerate(group["params"]):
            count = parameter.numel()
            if parameter.grad is not None:
                self._check(parameter, f"parameter {index} of group {number}")
                state = self._state(parameter, names)
                moments = [state[name] for name in names]
                types = _TYPE_NAMES[parameter.dtype], _TYPE_NAMES[moments[0].dtype] if moments else "fp32"
                held.append((parameter.detach(), parameter.grad, moments))
                addresses = [moment.data_ptr() for moment in moments]
                tensor = (parameter.data_ptr(), parameter.grad.data_ptr(), addresses, count, first_element)
                batches.setdefault((state["step"] + 1, *types), []).append((index, tensor))
            first_element += count
        for (step, parameter_type, moment_type), tensors in batches.items():
            bad = self._steps.step(config, step, parameter_type, moment_type, [tensor for _, tensor in tensors])
            for index, _ in tensors:
                self.state[group["params"][index]]["step"] = step
            if bad is not None:
                warnings.warn(
                    f"step {step} made parameter {tensors[bad][0]} of group {number} or its states non-finite; "
                    "check the gradients and the learning rate",
                    RuntimeWarning,
                    stacklevel=4,
                )
        return first_element

    def _check(self, parameter: torch.Tensor, name: str) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if parameter.device.type != "cpu":
            raise AssertionError(  # as DeepSpeed, also with python -O
                f"{type(self).__name__} param is on {parameter.device} and must be 'cpu', make sure you enabled "
                f"'offload_optimizer': 'cpu' in your ZeRO config. ({name})"
            )
        if parameter.dtype not in _TYPE_NAMES:
            raise ValueError(f"{name} is {parameter.dtype}; {type(self).__name__} takes fp32, bf16 and fp16")
        if gradient.layout is not torch.strided:
            raise ValueError(f"the gradient of {name} is sparse; {type(self).__name__} takes dense ones: sparse=False")
        if gradient.dtype != parameter.dtype:
            raise ValueError(f"the gradient of {name} is {gradient.dtype}, the parameter is {parameter.dtype}")
        for what, tensor in (("", parameter), ("the gradient of ", gradient)):
            if not tensor.is_contiguous():
                raise ValueError(f"{what}{name} is not contiguous; make it so with .contiguous()")

    def _state_type(self, parameter: torch.Tensor) -> torch.dtype:
        if self.fp32_optimizer_states:
            return torch.float32
        if parameter.dtype == torch.float16:
            raise ValueError("states in fp16 are not supported; use fp32_optimizer_states=True, or bf16 parameters")
        return parameter.dtype

    def _state(self, parameter: torch.Tensor, names: tuple[str, ...]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in names:
                state[name] = torch.zeros_like(
                    parameter, dtype=self._state_type(parameter), memory_format=torch.contiguous_format
                )
        # torch.optim counts in a tensor, or, without a use for it, not at all.
        state["step"] = int(state.get("step", 1))
        for name in names:
            if name not in state:
                raise ValueError(f"the state of a parameter has no {name!r}; {type(self).__name__} needs {', '.join(names)}")
        return state

    def __getstate__(self) -> dict[str, Any]:
        # PyTorch copies and pickles its own members only.
        return {**super().__getstate__(), **{name: getattr(self, name) for name in self._settings}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_steps" not in self.__dict__:
            self._steps = _core.HostSteps(torch.get_num_threads())
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the states of this optimizer, or of torch.optim's that has the same ones (Adam, AdamW, SGD).

        States keep their precision: PyTorch would round fp32 states to the type of a 16-bit parameter.
        """
        super().load_state_dict(state_dict)
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        mine = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, mine):
            for name, value in state_dict["state"].get(key, {}).items():
                if name != "step" and isinstance(value, torch.Tensor):
                    loaded = value.detach().to("cpu", self._state_type(parameter), copy=True)
                    self.state[parameter][name] = loaded.contiguous()
