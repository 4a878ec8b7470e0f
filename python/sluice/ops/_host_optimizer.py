"""Base of the host optimizers: the loop over PyTorch's parameters. The kernels are in `sluice._core`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
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
_MAX_STEPS = 2**63 - 1

_Config = Any  # a configuration of _core


@dataclasses.dataclass
class _Batch:
    """The parameters of a group that one call of the kernels steps."""

    group: int
    config: _Config
    step: int
    types: tuple[str, str]  # of the parameters and their moments
    indices: list[int] = dataclasses.field(default_factory=list)
    tensors: list[tuple[int, int, list[int], int, int]] = dataclasses.field(default_factory=list)
    held: list[Any] = dataclasses.field(default_factory=list)  # another thread may replace tensors while the GIL is released


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

    def _check_decay(self, group: dict[str, Any], number: int) -> None:
        """Raises ValueError for a group whose weight decay has its place elsewhere in the formula."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as PyTorch's.

        Raises ValueError for one that an optimizer of another formula made, and for one that has a parameter twice.
        """
        if isinstance(param_group, dict):
            _foreign_groups.check(param_group, len(self.param_groups), type(self).__name__, self._formula)
            self._check_decay(param_group, len(self.param_groups))
        super().add_param_group(param_group)
        first: dict[torch.Tensor, int] = {}
        for index, parameter in enumerate(self.param_groups[-1]["params"]):
            if first.setdefault(parameter, index) != index:
                number = len(self.param_groups) - 1
                del self.param_groups[-1]
                raise ValueError(
                    f"parameters {first[parameter]} and {index} of group {number} are one parameter, which a step of "
                    f"{type(self).__name__} would update twice at once: give each parameter once"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        ``closure``: computes the loss again, with gradients; its result is returned.

        Raises AssertionError for a parameter that is not on the CPU; ValueError for a parameter or gradient that is not
        contiguous, sparse, or of another type; ValueError for a parameter that is a view of a conjugate; ValueError for a
        state of another shape than its parameter, or of another type; and ValueError for a rate or constant out of range, or
        for a group with maximize or lr_decay, which only an engine's step has. An error leaves every parameter as it was.
        Warns when a parameter or state becomes non-finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        first_element = 0
        batches: list[_Batch] = []
        for number, group in enumerate(self.param_groups):
            batches += self._batches_of(number, group, first_element)
            first_element += sum(parameter.numel() for parameter in group["params"])
        for batch in batches:
            self._run(batch)
        return loss

    def _batches_of(self, number: int, group: dict[str, Any], first_element: int) -> Iterable[_Batch]:
        """The checked parameters of a group, by their number of updates and their types."""
        _foreign_groups.check_step(group, number, type(self).__name__, self.defaults)
        self._check_decay(group, number)
        config, names = self._config(group), self._state_names(group)
        _core.check_optimizer(config)
        batches: dict[tuple[int, tuple[str, str]], _Batch] = {}
        for index, parameter in enumerate(group["params"]):
            count = parameter.numel()
            if parameter.grad is not None:
                place = f"parameter {index} of group {number}"
                self._check(parameter, place)
                state = self._state(parameter, names)
                moments = self._moments(parameter, names, place)
                types = _TYPE_NAMES[parameter.dtype], _TYPE_NAMES[moments[0].dtype] if moments else "fp32"
                step = state["step"] + 1
                batch = batches.setdefault((step, types), _Batch(number, config, step, types))
                batch.indices.append(index)
                addresses = [moment.data_ptr() for moment in moments]
                gradient = parameter.grad.resolve_neg()  # the kernels read bytes, and not the sign that waits on them
                batch.tensors.append((parameter.data_ptr(), gradient.data_ptr(), addresses, count, first_element))
                batch.held.append((parameter.detach(), gradient, moments))
            first_element += count
        return batches.values()

    def _run(self, batch: _Batch) -> None:
        bad = self._steps.step(batch.config, batch.step, *batch.types, batch.tensors)
        params = self.param_groups[batch.group]["params"]
        for index in batch.indices:
            self.state[params[index]]["step"] = batch.step
            torch.autograd.graph.increment_version(params[index])  # a backward through the values before the step is an error
        if bad is not None:
            warnings.warn(
                f"step {batch.step} made parameter {batch.indices[bad]} of group {batch.group} or its states non-finite; "
                "check the gradients and the learning rate",
                RuntimeWarning,
                stacklevel=4,
            )

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
        if gradient.shape != parameter.shape or gradient.device != parameter.device:
            raise ValueError(
                f"the gradient of {name} has shape {list(gradient.shape)} on {gradient.device}, the parameter "
                f"{list(parameter.shape)} on cpu: compute it again after a change of .data"
            )
        if parameter.is_neg():
            raise ValueError(
                f"{name} is a view of a conjugate, whose memory has the opposite sign; give it values of its own: "
                "parameter.data = parameter.data.resolve_neg()"
            )
        for what, tensor in (("", parameter), ("the gradient of ", gradient)):
            if not tensor.is_contiguous():
                raise ValueError(f"{what}{name} is not contiguous; make it so with .contiguous()")

    def _state_type(self, parameter: torch.Tensor) -> torch.dtype:
        if self.fp32_optimizer_states:
            return torch.float32
        if parameter.dtype == torch.float16:
            raise ValueError("states in fp16 are not supported; use fp32_optimizer_states=True, or bf16 parameters")
        return parameter.dtype

    def _zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(parameter, dtype=self._state_type(parameter), memory_format=torch.contiguous_format)

    def _state(self, parameter: torch.Tensor, names: tuple[str, ...]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in names:
                state[name] = self._zeros(parameter)
        # torch.optim counts in a tensor, or, without a use for it, not at all.
        state["step"] = int(state.get("step", 1))
        if state["step"] >= _MAX_STEPS:
            raise ValueError(
                f"the state of a parameter has counted {state['step']} steps, and the most are {_MAX_STEPS}: set its 'step'"
            )
        for name in names:
            if name not in state:
                raise ValueError(
                    f"the state of a parameter has no {name!r}; {type(self).__name__} needs {', '.join(names)}. Load or set "
                    "states of this parameter, or clear them to begin anew"
                )
        return state

    def _moments(self, parameter: torch.Tensor, names: tuple[str, ...], place: str) -> list[torch.Tensor]:
        """The states that the kernels write, checked. One that is not contiguous is replaced by a contiguous one."""
        state: dict[str, Any] = self.state[parameter]
        moments: list[torch.Tensor] = []
        for name in names:
            moment, wrong = state[name], ""
            if not isinstance(moment, torch.Tensor):
                wrong = f"is a {type(moment).__name__} and no tensor"
            elif moment.shape != parameter.shape:
                wrong = f"has shape {list(moment.shape)}, the parameter has {list(parameter.shape)}"
            elif moment.device.type != "cpu" or moment.layout is not torch.strided:
                wrong = f"is on {moment.device} with layout {moment.layout}; {type(self).__name__} takes dense ones on the CPU"
            elif moment.dtype not in (torch.float32, torch.bfloat16):
                wrong = f"is {moment.dtype}; {type(self).__name__} takes fp32 and bf16"
            elif moments and moment.dtype != moments[0].dtype:
                wrong = f"is {moment.dtype}, and {names[0]!r} is {moments[0].dtype}: both have one type"
            if wrong:
                raise ValueError(
                    f"the state {name!r} of {place} {wrong}. Load or set states of this parameter, or clear them to begin anew"
                )
            state[name] = moment.contiguous().resolve_neg()
            moments.append(state[name])
        return moments

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

        Raises ValueError, with nothing loaded, for groups of another formula, and for states in fp16.
        """
        seen: list[dict[str, Any]] = []

        def check(_: Any, state: dict[str, Any]) -> None:
            self._check_loaded(state)
            seen.append(state)

        # The first one after the script's, which may change the state; the other before the script's.
        last = self.register_load_state_dict_pre_hook(check)
        first = self.register_load_state_dict_post_hook(lambda _: self._take(seen[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _check_loaded(self, state_dict: dict[str, Any]) -> None:
        for number, group in enumerate(state_dict["param_groups"]):
            _foreign_groups.check_loaded(group, number, type(self).__name__, self._formula)
            self._check_decay(group, number)
        for parameter, _, _ in self._saved_tensors(state_dict):
            self._state_type(parameter)  # raises where there is none

    def _take(self, state_dict: dict[str, Any]) -> None:
        """The states in their precision."""
        for parameter, name, value in self._saved_tensors(state_dict):
            self.state[parameter][name] = value.detach().to("cpu", self._state_type(parameter), copy=True).contiguous()

    def _saved_tensors(self, state_dict: dict[str, Any]) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
        """Each saved state but the number of steps: its parameter, its name and its values."""
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        mine = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, mine):
            for name, value in state_dict["state"].get(key, {}).items():
                if name != "step" and isinstance(value, torch.Tensor):
                    yield parameter, name, value
