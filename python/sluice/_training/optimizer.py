"""Parameter groups of a client's optimizer, and the optimizer that an engine returns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._refusals import missing
from ..runtime.zero.parameter_offload import DeepSpeedZeRoOffload

if TYPE_CHECKING:
    from ..engine import SluiceEngine
    from .offloaded import OffloadedModel

_BETAS = ("lr", "betas", "eps", "weight_decay")
# Classes by name, since those of other packages need not be installed: the type of the configuration with their formula, and
# the values that it takes from them.
_FORMULAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "AdamW": ("AdamW", _BETAS),
    "FusedAdam": ("AdamW", _BETAS),
    "DeepSpeedCPUAdam": ("AdamW", _BETAS),
    "Adam": ("Adam", _BETAS),
    "Adagrad": ("Adagrad", ("lr", "eps", "weight_decay")),
    "DeepSpeedCPUAdagrad": ("Adagrad", ("lr", "eps", "weight_decay")),
    "Lion": ("Lion", ("lr", "betas", "weight_decay")),
    "FusedLion": ("Lion", ("lr", "betas", "weight_decay")),
    "DeepSpeedCPULion": ("Lion", ("lr", "betas", "weight_decay")),
    "SGD": ("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    "CPUSGD": ("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
}


# Facts of an optimizer that hold for all its groups here, and their defaults where its class has none.
_OF_ALL_GROUPS = {
    "amsgrad": False,
    "maximize": False,
    "nesterov": False,
    "bias_correction": True,
    "lr_decay": 0,
    "initial_accumulator_value": 0,
}


def check_groups(groups: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
    """Raises ValueError for a group with a formula of its own. ``defaults``: of the optimizer, or of its section."""
    for number, group in enumerate(groups):
        for key, usual in _OF_ALL_GROUPS.items():
            of_all = defaults.get(key, usual)
            if group.get(key, of_all) != of_all:
                raise ValueError(f"parameter group {number} has {key}={group[key]}: it is {of_all} for all groups, set it for the whole optimizer")


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The "optimizer" section that a client's optimizer stands for. Raises ValueError where there is none."""
    name = type(optimizer).__name__
    if name not in _FORMULAS:
        raise ValueError(
            f"an optimizer of class {name} has no formula here: pass one of {', '.join(_FORMULAS)}, or none, and an "
            '"optimizer" section in the configuration'
        )
    kind, keys = _FORMULAS[name]
    defaults = optimizer.defaults
    if isinstance(defaults["lr"], torch.Tensor):
        raise ValueError(f"{name} has its lr in a tensor: pass a number")
    if any(state for state in optimizer.state.values() if name != "Adagrad"):
        raise ValueError(f"{name} has stepped before: its states would be lost; pass a new optimizer")
    if getattr(optimizer, "fp32_optimizer_states", True) is False:
        raise ValueError(f'{name} asks for states in the type of the weights: set "sluice": {{"moments": "bf16"}} instead')
    check_groups(optimizer.param_groups, defaults)
    values = {key: list(defaults[key]) if key == "betas" else defaults[key] for key in keys}
    for key in ("amsgrad", "maximize"):
        if defaults.get(key):
            values[key] = True
    if kind in ("Adam", "AdamW"):
        coupled = kind == "Adam" and not defaults.get("decoupled_weight_decay")
        mode = getattr(optimizer, "adam_w_mode", defaults.get("adam_w_mode", True))  # of DeepSpeed's classes
        if coupled or not mode:
            kind, values["adam_w_mode"] = "Adam", False
        values["bias_correction"] = bool(defaults.get("bias_correction", True))
    for key in ("lr_decay", "initial_accumulator_value"):
        if kind == "Adagrad" and defaults.get(key):
            values[key] = defaults[key]
    return {"type": kind, "params": values}


def values_of(group: Mapping[str, Any]) -> dict[str, float]:
    """A group's values for one step, as the loop takes them."""
    values = {key: group[key] for key in ("lr", "weight_decay", "eps", "momentum", "dampening") if key in group}
    if "betas" in group:
        values["beta1"], values["beta2"] = group["betas"]
    return {key: float(value) for key, value in values.items()}


class TierOptimizer(torch.optim.Optimizer):
    """Parameter groups of a model over memory tiers, with the values of the next step; schedulers may change them.

    ``client``: an optimizer whose formula and groups are taken over. ``groups``: without one, groups that differ from the
    configuration's. States are at their tiers and not in ``state``. Private: the optimizers that users get inherit it.
    """

    def __init__(
        self,
        offloaded: OffloadedModel,
        client: torch.optim.Optimizer | None,
        groups: list[dict[str, Any]] | None = None,
    ) -> None:
        defaults = dict(offloaded.loop.optimizer_values if client is None else client.defaults)
        super().__init__([{"params": []}], defaults)
        if client is not None:
            self.param_groups = client.param_groups  # the list itself, so that its scheduler's changes are seen
        else:
            made = offloaded.configured_groups() if groups is None else groups
            self.param_groups = [{**defaults, **group} for group in made]
        self._offloaded = offloaded
        self._client = client
        # Others have no values in a step, but their place in the list, which schedulers count.
        self._stepped = [any(parameter.requires_grad for parameter in group["params"]) for group in self.param_groups]

    def end_step(self) -> Any:
        """Ends the step of the loop with the values of the groups. Returns its StepResult."""
        shown = next((+self._offloaded.shown).elements(), None)
        if shown is not None:
            raise ValueError(f"a step ends inside GatheredParameters, which shows {shown}: leave its context first")
        # PyTorch's schedulers ask the optimizer that they were made with whether it has stepped, and warn.
        for asked in (self, self._client):
            if asked is not None:
                asked._opt_called = True  # type: ignore[attr-defined]
        self._offloaded.check_parameters()
        stepped = itertools.compress(self.param_groups, self._stepped)
        return self._offloaded.loop.end_step([values_of(group) for group in stepped])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError: the groups are those that the engine was made with."""
        if hasattr(self, "_offloaded"):
            raise ValueError("a parameter group comes too late: give all groups when the model is moved to its tiers")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step so far. Right after a step() nothing: a step uses its gradients up."""
        self._offloaded.hooks.drop_gradients()

    def state_dict(self) -> dict[str, Any]:
        """The values of the groups, and the steps taken. Moments are in a checkpoint of the engine's, or of :func:`sluice.offload`'s."""
        values = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"param_groups": values, "steps": int(self._offloaded.loop.step)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Sets the values of the groups. Raises ValueError for another number of them, and for a state whose moments this optimizer does not have."""
        here = int(self._offloaded.loop.step)
        if self._offloaded.loop.moment_names and (state_dict.get("state") or state_dict.get("steps", here) != here):
            raise ValueError(
                "the moments of a model over memory tiers are not in a state_dict: save_checkpoint() writes them, and "
                "load_checkpoint() continues with them"
            )
        saved_groups = state_dict["param_groups"]
        if len(saved_groups) != len(self.param_groups):
            raise ValueError(f"the state has {len(saved_groups)} parameter groups, and the optimizer has {len(self.param_groups)}")
        for group, saved in zip(self.param_groups, saved_groups):
            group.update({key: value for key, value in saved.items() if key != "params"})


class SluiceOptimizer(TierOptimizer):
    """The optimizer of an engine. Its ``param_groups`` hold the rates of the next step; schedulers may change them.

    The engine steps: :meth:`step` is ``engine.step()``. States are at their tiers and not in :attr:`state`.
    """

    def __init__(
        self,
        engine: SluiceEngine,
        offloaded: OffloadedModel,
        client: torch.optim.Optimizer | None,
        groups: list[dict[str, Any]] | None,
    ) -> None:
        super().__init__(offloaded, client, groups)
        self._engine: Any = engine  # a weak one after destroy()
        self.overflow = False
        self.parameter_offload = DeepSpeedZeRoOffload(offloaded.model)

    def __getattr__(self, name: str) -> Any:
        raise missing(f"{type(self).__name__!r} object", name)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Itself, as DeepSpeed's wrappers have the wrapped optimizer."""
        return self

    @property
    def loss_scale(self) -> float:
        return float(self._offloaded.loop.loss_scale)

    cur_scale = loss_scale

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("a closure would run the forward again: call engine.backward() and engine.step() instead")
        self._engine.step()


def groups_of(model_parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's ``model_parameters``: parameters, or dicts of groups."""
    given = list(model_parameters)
    if given and isinstance(given[0], dict):
        return [{**group, "params": _parameters(group["params"])} for group in given]
    return [{"params": _parameters(given)}]


def _parameters(given: Any) -> list[torch.Tensor]:
    """One parameter, several, or several with their names."""
    many = [given] if isinstance(given, torch.Tensor) else given
    return [each[1] if isinstance(each, tuple) else each for each in many]
