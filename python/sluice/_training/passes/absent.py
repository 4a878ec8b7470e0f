"""Parameters whose values are elsewhere: what would compute with them, or write to them, is an error that names them.

PyTorch has no error for it: an operation on an empty tensor gives an empty tensor, and a write to one is lost.

While a parameter's values are here, its class is ``torch.nn.Parameter``, so a forward and a backward cost nothing more.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from ..owners import is_here, owner_of
from .writes import INSTEAD

log = logging.getLogger("sluice")

# PyTorch's libraries do this with a parameter that is empty: they ask what it is, move modules, and set gradients.
_ASKS = {
    *("__dir__", "__format__", "__hash__", "__repr__", "_fix_weakref", "_has_compatible_shallow_copy_type", "_is_view"),
    *("can_cast", "dense_dim", "dim", "element_size", "get_device", "has_names", "ndimension", "nelement"),
    *("numel", "result_type", "size", "sparse_dim", "storage_offset", "storage_type", "stride"),
    *("backward", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad", "share_memory_"),
}
# Those of them, and attributes, that ask for a shape or follow from it.
_OF_SHAPE = {
    *("dense_dim", "dim", "is_contiguous", "is_same_size", "names", "nbytes", "ndim", "ndimension", "nelement", "numel"),
    *("result_type", "shape", "size", "stride"),
}
# They give a tensor that is as empty.
_MOVES = {
    *("bfloat16", "contiguous", "cpu", "cuda", "data", "detach", "double", "float", "half", "pin_memory", "to", "type", "type_as"),
}
# They make a tensor of another shape and content, in the parameter's data type and on its device.
_NEW = {"new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"}
_LIKE = {"empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"}
_VALUES = {"H", "T", "imag", "mH", "mT", "real"}  # the attributes that are operations
# They write to their first argument, as do names that end with "_", and the attribute "data" that is set.
_WRITES = {
    *("__setitem__", "__iadd__", "__iand__", "__ifloordiv__", "__ilshift__", "__imod__", "__imul__", "__ior__", "__ipow__"),
    *("__irshift__", "__isub__", "__itruediv__", "__ixor__"),
}


class Absent(torch.Tensor):
    """Result of ``.data``, ``.detach()`` and ``.to()`` of an absent parameter."""

    _sluice_parameter: AbsentParameter

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name, kind = _called(func)
        values = [*args, *(kwargs or {}).values()]
        absent = next(_absent_in(values), None)
        if absent is not None and not _is_allowed(name, kind, values):
            is_write = _writes_to_it(name, kind, values)
            if is_write or not _borrowed(name, values):
                _refuse(next(_absent_in(values)), name, is_write)
            return func(*args, **(kwargs or {}))
        if absent is not None and name in _OF_SHAPE and kind != "set" and any(map(_is_computed_with, _absent_in(values))):
            return func(*map(_whole, args), **{key: _whole(value) for key, value in (kwargs or {}).items()})
        if isinstance(absent, AbsentParameter) and (name, kind) == ("grad", "get"):
            _refuse_clipping(absent, sys._getframe(1))
        if isinstance(absent, AbsentParameter) and name == "grad" and (kind == "delete" or (kind == "set" and args[1] is None)):
            drop_gradients_of([absent])
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if absent is None and torch.is_grad_enabled():
            _await_lent(values, result)
        if (name, kind) == ("data", "set") and isinstance(args[0], AbsentParameter) and args[1].numel() > 0:
            args[0].__class__ = nn.Parameter  # type: ignore[assignment]  # it has values again
        # Another tensor may go to the data type and device of the absent one.
        is_moved = name in _MOVES and absent is not None and values[0] is absent
        if not is_moved or not isinstance(result, torch.Tensor) or result is absent:
            return result
        moved = result.as_subclass(Absent)
        moved._sluice_parameter = _parameter_of(values[0])
        return moved


class AbsentParameter(nn.Parameter):
    """A parameter of an engine between the passes of its unit, or one whose unit is gathered for a use outside it."""

    __torch_function__ = Absent.__torch_function__

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        self._check_is_free()
        with torch._C.DisableTorchFunctionSubclass():
            memo[id(self)] = copied = nn.Parameter(self.data.clone(), self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check_is_free()
        with torch._C.DisableTorchFunctionSubclass():
            return super().__reduce_ex__(protocol)

    def _check_is_free(self) -> None:
        if owner_of(self) is not None:
            refuse_copies()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Parameter {_name_of(self)} of shape {list(self.ds_shape)}, whose values are not here between passes"  # type: ignore[attr-defined]


def drop_gradients_of(parameters: Iterable[torch.Tensor]) -> None:
    """A script sets gradients of the step to None: those of an engine are elsewhere. Nothing inside a backward."""
    if torch._C._current_graph_task_id() != -1:
        return
    for parameter in parameters:
        owner = owner_of(parameter)
        if owner is not None and parameter.requires_grad:
            owner.model.loop.drop_gradients_of([owner.name])


def refuse_copies() -> NoReturn:
    """Raises TypeError for a copy of a model under an engine, and says what to do."""
    raise TypeError(
        "a model under an engine cannot be copied or pickled: engine.module_state_dict() has copies of its values, and "
        "copies of the model are made before the engine"
    )


class Guards:
    """Which parameters of a model's units have the class that refuses. ``units``: the parameters that each one gathers.

    Parameters of a class of their own, as quantized ones, are left alone. A warning names those that train.
    """

    def __init__(self, units: Iterable[Iterable[torch.Tensor]]) -> None:
        self._units: list[list[torch.Tensor]] = []
        self._gathered: list[list[torch.Tensor]] = []  # by unit: its parameters, and what comes and goes with tied ones
        self._lent: set[torch.Tensor] = set()
        of_own_class: dict[torch.Tensor, None] = {}  # in order
        neighbours: dict[torch.Tensor, list[torch.Tensor]] = {}  # by parameter: all with the same first unit
        for unit in units:
            given = list(unit)
            first = [each for each in given if each not in neighbours]
            neighbours.update(dict.fromkeys(first, first))
            gathered = dict.fromkeys(other for each in given for other in neighbours[each])
            self._units.append(list(filter(_has_usual_class, given)))
            self._gathered.append(list(filter(_has_usual_class, gathered)))
            of_own_class.update(dict.fromkeys(each for each in given if each.requires_grad and not _has_usual_class(each)))
        if of_own_class:
            names = [f"{_name_of(each)} ({type(each).__name__})" for each in of_own_class]
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            log.warning(
                "parameters of a class of their own, %s%s, are empty while their unit does not compute, as all are; but reading or "
                "writing them then is no error: it gives an empty result, or is lost",
                names[0], more,
            )  # fmt: skip
        for index in range(len(self._units)):
            self.left(index)

    def entered(self, unit: int) -> None:
        """Lets the parameters of a unit that was gathered be used."""
        for parameter in self._units[unit]:
            parameter.__class__ = nn.Parameter  # type: ignore[assignment]

    def lent(self, unit: int) -> None:
        """The model's forward uses them outside their unit: their class keeps an eye on that."""
        self._lent.update(self._units[unit])
        self.left(unit)

    def left(self, unit: int) -> None:
        """Another unit that is entered may still have them. A tied weight takes those along that it brought from its first unit."""
        for parameter in self._gathered[unit]:
            if type(parameter) is nn.Parameter and (parameter.numel() == 0 or parameter in self._lent):
                parameter.__class__ = AbsentParameter  # type: ignore[assignment]
        if self._lent:
            self._lent = set(filter(is_here, self._lent))

    def all_left(self) -> None:
        """As :meth:`left` for every unit."""
        for unit in range(len(self._units)):
            self.left(unit)


def _has_usual_class(parameter: torch.Tensor) -> bool:
    return type(parameter) in (nn.Parameter, AbsentParameter)


def _called(func: Any) -> tuple[str, str]:
    """The name of a method or attribute, and "get", "set" or "call"."""
    name: str = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__", "__delete__"):
        return getattr(func.__self__, "__name__", name), name.strip("_")
    return name, "call"


def _is_allowed(name: str, kind: str, values: list[Any]) -> bool:
    """``values``: the arguments, the tensor itself first."""
    if kind == "get":
        return name not in _VALUES
    if kind == "set":  # a module that moves sets what it moved, which is as empty
        return name != "data" or values[1].numel() == 0 or owner_of(values[0]) is None
    if kind == "delete":  # of .grad; PyTorch refuses others
        return True
    if name in _NEW:
        return next(_absent_in(values[1:]), None) is None
    if name == "data_ptr":  # by which files are written; PyTorch's own ask for it when an LSTM moves
        return sys._getframe(2).f_globals.get("__name__") == "torch.nn.modules.rnn"
    return name in _ASKS or name in _MOVES or (name.startswith("is_") and name != "is_nonzero")


def _is_computed_with(absent: torch.Tensor) -> bool:
    """Whether a pass of its model is under way, whose numbers may follow from the parameter's shape.

    Checkpointing asks in a backward too: it keeps a frozen parameter itself when it computes again, and compares its shape to
    the saved one. Its unit has been left by then, and is entered again before backward uses it.
    """
    owner = owner_of(_parameter_of(absent))
    return torch._C._current_graph_task_id() != -1 or (owner is not None and owner.model.hooks.is_computing)


def _whole(value: Any) -> Any:
    """For an absent parameter, or a tensor made of one: a tensor of its shape without memory."""
    absent = next(_absent_in([value]), None)
    if absent is None or absent is not value:
        return value
    return torch.empty(_parameter_of(absent).ds_shape, dtype=absent.dtype, device="meta")  # type: ignore[attr-defined]


def _writes_to_it(name: str, kind: str, values: list[Any]) -> bool:
    """Whether the absent parameter is what an operation writes to, and not what it reads."""
    writes = kind == "set" or name in _WRITES or (name.endswith("_") and not name.endswith("__"))
    return writes and next(_absent_in(values[:1]), None) is not None


def _absent_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, (Absent, AbsentParameter)):
            if not is_here(value):
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _absent_in(value)
        elif isinstance(value, dict):
            yield from _absent_in(value.values())


def _borrowed(what: str, values: list[Any]) -> bool:
    """Inside the model's own forward, gathers the units of absent parameters until it ends. Whether all values are here now."""
    for absent in list(_absent_in(values)):
        owner = owner_of(absent)
        if owner is not None and owner.model.hooks.is_in_forward:
            owner.model.hooks.lend(owner.unit, f"{what} of {owner.name}")
    return next(_absent_in(values), None) is None


def _await_lent(values: Iterable[Any], result: Any) -> None:
    """A result of a lent parameter may leave the forward beside its output, as in an attribute, and its backward come first."""
    for value in values:
        if isinstance(value, AbsentParameter):
            owner = owner_of(value)
            if owner is not None:
                owner.model.hooks.await_lent(owner.unit, result)
        elif isinstance(value, (list, tuple)):
            _await_lent(value, result)


def _parameter_of(absent: torch.Tensor) -> AbsentParameter:
    return absent._sluice_parameter if isinstance(absent, Absent) else absent  # type: ignore[return-value]


def _name_of(parameter: torch.Tensor) -> str:
    owner = owner_of(parameter)
    return owner.name if owner is not None else f"(of shape {list(parameter.ds_shape)})"  # type: ignore[attr-defined]


def _refuse_clipping(parameter: AbsentParameter, asks: types.FrameType) -> None:
    """PyTorch's clip_grad_value_ leaves parameters without gradients alone. ``asks``: where one is asked for; a loop has a frame of its own."""
    frames = asks, asks.f_back
    if asks.f_globals.get("__name__") != "torch.nn.utils.clip_grad" or not parameter.requires_grad or owner_of(parameter) is None:
        return
    if any(frame is not None and frame.f_code.co_name == "clip_grad_value_" for frame in frames):
        raise RuntimeError(
            f"clip_grad_value_ of parameter {_name_of(parameter)}: its gradient is not here between passes, and nothing would be clipped. The "
            'key "gradient_clipping" clips by the norm. By value, a hook clips each backward\'s gradient, before the first one: '
            "parameter.register_hook(lambda gradient: gradient.clamp(-value, value))"
        )


def _refuse(absent: torch.Tensor, what: str, is_write: bool) -> NoReturn:
    parameter = _parameter_of(absent)
    owner = owner_of(parameter)
    begin = f"{what} of parameter {_name_of(parameter)}: "
    if absent is not parameter and isinstance(absent, nn.Parameter):
        raise RuntimeError(
            f"{begin}another parameter was made of the engine's, which has no values between passes, as by a module's to(\"meta\"): after "
            "initialize() a module must not be moved or converted"
        )
    if owner is None:
        raise RuntimeError(
            f"{begin}it has no values any more, since its engine was destroyed, or went with its model. Read values before destroy(), and build the "
            "model again for another engine"
        )
    if is_write and owner.model.hooks.is_in_forward:
        raise RuntimeError(
            f"{begin}its values are not here, since this is not the forward of its block, and there a write is lost: {INSTEAD}"
        )
    if owner.model.hooks.is_in_forward:
        raise RuntimeError(
            f"{begin}its values are not here, since this is not the forward of its block, and a tensor made of it before is as "
            "empty. Use the parameter itself, which is gathered then; or register every parameter that the forward uses with the "
            "module of that forward: sluice.zero.register_external_parameter(module, parameter); or choose smaller units: "
            "initialize(..., units=[...])"
        )
    in_backward = torch._C._current_graph_task_id() != -1
    when = "while its unit does not compute" if in_backward else "between passes"
    end = "; torch.zeros(parameter.ds_shape, dtype=parameter.dtype, device=parameter.device) has its shape" if what in _LIKE else ""
    if in_backward:
        end += (
            ". A backward that calls modules inside a unit by themselves, as a reversible layer's, needs these modules as units: "
            "initialize(..., units=[...]) with their classes. One that calls torch.autograd.grad, as that of an adjoint ODE, needs the "
            "module whose forward applies it as a unit"
        )
    raise RuntimeError(
        f"{begin}its values are not here {when}, at every ZeRO stage. Inside sluice.zero.GatheredParameters(parameters) "
        "they are, with modifier_rank=0 to change them; the model's state_dict() has copies. Libraries whose code gathers at ZeRO-3 "
        'only need "stage": 3' + end
    )
