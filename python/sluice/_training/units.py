"""The units of a PyTorch module: which parameters are gathered together."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Union

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .._arguments import names_or_classes

log = logging.getLogger("sluice")

Choice = Union[None, Iterable[Union[str, type]], Callable[[str, nn.Module], bool]]
"""Which modules are units: names of classes or of modules, classes, or a function of name and module; None: found."""


@dataclass
class Unit:
    """A module whose parameters are gathered when it is called."""

    name: str
    module: nn.Module
    params: list[tuple[str, nn.Parameter]]  # by full name; a parameter of several modules is in each
    inside: list[int] = field(default_factory=list)  # units whose modules contain this one


def is_kept(parameter: torch.Tensor) -> bool:
    """Whether a parameter stays in its module, as buffers do: it has no elements, or is frozen and of a type that none trains in.

    One that an engine has emptied is another matter.
    """
    if parameter.numel() == 0:
        return not hasattr(parameter, "ds_shape")
    return not parameter.requires_grad and not is_wide_float(parameter)


def is_wide_float(tensor: torch.Tensor) -> bool:
    """Whether it has floating-point numbers of 16 bits or more. Those of 8 bits are a storage format, as quantized models have."""
    return tensor.is_floating_point() and tensor.itemsize > 1


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _blocks_of_lists(model: nn.Module) -> set[nn.Module]:
    """Children of the outermost ModuleLists and Sequentials that have parameters."""
    found: set[nn.Module] = set()

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(module, (nn.ModuleList, nn.Sequential)) and not isinstance(child, (nn.ModuleList, nn.Sequential)):
                if _has_parameters(child):
                    found.add(child)
            else:
                visit(child)

    visit(model)
    return found


def _classes_not_to_split(model: nn.Module) -> set[str]:
    """Transformers' models name the classes of their blocks."""
    names: set[str] = set()
    for module in model.modules():
        given = getattr(module, "_no_split_modules", None)
        if isinstance(given, (list, tuple, set, frozenset)):  # a module may answer to any name
            names |= {name for name in given if isinstance(name, str)}
    return names


def _chosen(model: nn.Module, choice: Choice) -> set[nn.Module]:
    if choice is None:
        classes = _classes_not_to_split(model)
        named = {module for module in model.modules() if type(module).__name__ in classes and _has_parameters(module)}
        marked = {module for module in model.modules() if getattr(module, "_z3_leaf", False)}  # set_z3_leaf_modules
        return (named or _blocks_of_lists(model)) | marked
    if callable(choice) and not isinstance(choice, type):
        return {module for name, module in model.named_modules() if choice(name, module)}
    found = set()
    for each in names_or_classes("units", choice):
        if isinstance(each, str):
            matching = {m for name, m in model.named_modules() if each in (name, type(m).__name__)}
        else:
            matching = {m for m in model.modules() if isinstance(m, each)}
        if not matching:
            raise ValueError(f"no module is {each!r}: units are named by their class or their name in the model")
        found |= matching
    return found


def find_units(model: nn.Module, choice: Choice = None) -> list[Unit]:
    """The units of a model, in the order of its modules.

    A chosen module is one unit, with everything in it but what is in other chosen ones. Another module that owns
    parameters itself is a unit too: with everything in it, or with its own parameters only where it contains a chosen one.
    ``choice`` None: the classes that ``_no_split_modules`` names, else the children of the outermost ``nn.ModuleList``
    and ``nn.Sequential``; what is found inside another one is a part of it. Parameters that :func:`is_kept` says are in
    no unit.

    Raises ValueError when the model has no parameter, one without a shape or with a name that is no UTF-8, a unit without hooks or a DistributedDataParallel, or ``choice`` names
    nothing; TypeError for a ``choice`` of another type. A warning names a chosen module that has others in it and no forward.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            where = f"module {name}" if name else "the model"
            raise ValueError(
                f"{where} is wrapped in DistributedDataParallel, which averages gradients of parameters that it holds whole: give the "
                "module in it (its .module). The ranks of an engine average gradients themselves"
            )
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet, since its module is lazy: call the model on a batch once before")
        if any("\ud800" <= letter <= "\udfff" for letter in name):  # half of a surrogate pair
            raise ValueError(f"the name {name!r} is no UTF-8, and files of weights have names in UTF-8")
    chosen = _chosen(model, choice)
    apart = set() if choice is None else chosen  # also inside another one
    units: list[Unit] = []

    def visit(name: str, module: nn.Module, inside: list[int], is_part: bool) -> None:
        is_whole = module in chosen or chosen.isdisjoint(module.modules())
        owns = next(module.parameters(recurse=False), None) is not None
        params: dict[nn.Parameter, str] = {}
        if module in chosen or (owns and not is_part):
            for key, parameter in _parameters_in(module, apart) if is_whole else module.named_parameters(recurse=False):
                params.setdefault(parameter, _joined(name, key))
        named = [(key, parameter) for parameter, key in params.items() if not is_kept(parameter)]
        if named:
            units.append(Unit(name or type(module).__name__, module, named, inside))
            inside = [*inside, len(units) - 1]
        is_part = is_part or (is_whole and bool(params))
        if is_part and apart.isdisjoint(module.modules()):
            return
        for key, child in module.named_children():
            visit(_joined(name, key), child, inside, is_part)

    visit("", model, [], False)
    if not units:
        raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to train")
    for name, module in [(type(model).__name__, model), *((unit.name, unit.module) for unit in units)]:
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{name} is a torch.jit.ScriptModule, which takes no hooks: pass the module that it was made from")
    for unit in units:
        if unit.module in chosen and _is_never_called(unit):
            log.warning(
                "unit %s is a %s, which has no forward, so nothing tells when the modules in it compute: choose these modules as units, "
                "or the module around it", unit.name, type(unit.module).__name__,
            )  # fmt: skip
    return _each_module_once(units)


def _parameters_in(module: nn.Module, apart: set[nn.Module], prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Without those of modules in ``apart`` that it contains."""
    for key, parameter in module.named_parameters(recurse=False):
        yield _joined(prefix, key), parameter
    for key, child in module.named_children():
        if child not in apart:
            yield from _parameters_in(child, apart, _joined(prefix, key))


def _is_never_called(unit: Unit) -> bool:
    """Whether a unit has parameters of other modules, and no forward of its own: a ModuleList or a ModuleDict."""
    module = unit.module
    if type(module).forward is not nn.Module.forward or "forward" in vars(module):
        return False
    own = {id(parameter) for parameter in module._parameters.values()}
    return any(id(parameter) not in own for _, parameter in unit.params)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _each_module_once(units: list[Unit]) -> list[Unit]:
    """A module that stands in several places of the model is one unit, of its first name."""
    seen: dict[nn.Module, int] = {}
    index: dict[int, int] = {}  # before -> now
    kept: list[Unit] = []
    for before, unit in enumerate(units):
        if unit.module not in seen:
            seen[unit.module] = len(kept)
            kept.append(unit)
        index[before] = seen[unit.module]
    for unit in kept:
        unit.inside = sorted({index[outer] for outer in unit.inside})
    return kept


def parameters_of(units: list[Unit]) -> dict[str, nn.Parameter]:
    """Every parameter once, by its first name."""
    names: dict[torch.Tensor, str] = {}
    for unit in units:
        for name, parameter in unit.params:
            names.setdefault(parameter, name)
    return {name: parameter for parameter, name in names.items()}  # type: ignore[misc]


@dataclass
class _Extent:
    """A tensor and the bytes from its first element to behind its last one, which may have gaps."""

    name: str
    tensor: torch.Tensor
    begin: int
    end: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> _Extent:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        begin = tensor.data_ptr()
        return cls(name, tensor, begin, begin + (last + 1) * tensor.element_size())

    def meets(self, other: _Extent) -> bool:
        """Whether a byte is in elements of both, whose extents have one in common."""
        if self.tensor.is_contiguous() and other.tensor.is_contiguous():
            return True
        begin = min(self.begin, other.begin)
        taken = torch.zeros(max(self.end, other.end) - begin, dtype=torch.bool, device="cpu")
        self._bytes_in(taken, begin).fill_(True)
        return bool(other._bytes_in(taken, begin).any())

    def _bytes_in(self, memory: torch.Tensor, begin: int) -> torch.Tensor:
        width = self.tensor.element_size()
        strides = [stride * width for stride in self.tensor.stride()]
        return memory.as_strided([*self.tensor.shape, width], [*strides, 1], self.begin - begin)


def check_apart(parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for two that share memory, of which one is a parameter that trains: each would get values of its own.

    Columns of one matrix share none, although they lie between each other.
    """
    places = {name: place for place, name in enumerate([*parameters, *buffers])}
    extents: dict[torch.device, list[_Extent]] = {}
    for name, tensor in [*parameters.items(), *buffers.items()]:
        if tensor.layout != torch.strided or tensor.numel() == 0 or tensor.data_ptr() == 0:
            continue  # the loop refuses such a parameter
        extents.setdefault(tensor.device, []).append(_Extent.of(name, tensor))
    for found in extents.values():
        before: list[_Extent] = []  # those that end behind the beginning of the next one
        for extent in sorted(found, key=lambda each: each.begin):
            before = [each for each in before if each.end > extent.begin]
            for other in before:
                first, second = sorted([extent, other], key=lambda each: places[each.name])
                trains = any(each.name in parameters and each.tensor.requires_grad for each in (first, second))
                if trains and extent.meets(other):
                    raise ValueError(_shared(first.name, second.name, second.name in parameters))
            before.append(extent)


def _shared(first: str, second: str, both_are_parameters: bool) -> str:
    if both_are_parameters:
        return (
            f"parameters {first} and {second} are over the same memory, and each would be updated by itself: tie them by "
            "assigning the one Parameter to both modules, or give one a clone() of the values"
        )
    return (
        f"buffer {second} is over the memory of parameter {first}, and would keep the values from before the first step: use "
        "the parameter in forward(), or give the buffer a clone() of the values"
    )


def prepare_values(parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Makes parameters ready for a loop, which reads their bytes.

    Raises ValueError for two that share memory, as :func:`check_apart`. Views of a conjugate, whose bytes have the opposite
    sign, get values of their own.
    """
    check_apart(parameters, buffers)
    for parameter in filter(torch.is_neg, parameters.values()):
        parameter.data = parameter.data.resolve_neg()
