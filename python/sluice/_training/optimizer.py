"""Parameter groups of a client's optimizer, and the optimizer that an engine returns."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._errors import wrong_type
from .._refusals import missing
from ..runtime.zero.parameter_offload import DeepSpeedZeRoOffload
from .saved import optimizer_hooks
from .saved.group_names import NAMES, check_order, names_in

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
_OF_ADAM = {"amsgrad", "maximize", "bias_correction"}
_FACTS: dict[str, set[str]] = {  # of each type of the configuration
    "AdamW": _OF_ADAM,
    "Adam": _OF_ADAM,
    "Adagrad": {"maximize", "lr_decay", "initial_accumulator_value"},
    "Lion": set(),
    "SGD": {"maximize", "nesterov"},
}
# Those that groups of torch.optim have, and that DeepSpeed's classes over these groups have no default of.
_OF_GROUPS = {"maximize", "lr_decay", "initial_accumulator_value"}


# torch.optim's Adam and AdamW differ in it alone; DeepSpeed's classes do not read it.
_DECOUPLED = "decoupled_weight_decay"


def check_groups(groups: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
    """Raises ValueError for a group with a formula of its own. ``defaults``: of the optimizer, or of its section."""
    facts = {key: defaults.get(key, usual) for key, usual in _OF_ALL_GROUPS.items()}
    if _DECOUPLED in defaults:
        facts[_DECOUPLED] = defaults[_DECOUPLED]
    for number, group in enumerate(groups):
        for key, of_all in facts.items():
            if group.get(key, of_all) != of_all:
                raise ValueError(f"parameter group {number} has {key}={group[key]}: it is {of_all} for all groups, set it for the whole optimizer")


def _facts_of(optimizer: torch.optim.Optimizer, kind: str) -> dict[str, Any]:
    """Settings that hold for all groups. Scripts set them in the groups, and Accelerate passes them on in no other way.

    ``kind``: the type of the configuration. Raises ValueError for groups that differ, and for a fact that this type has not.
    """
    usual = {**_OF_ALL_GROUPS, **optimizer.defaults}
    groups = [{**usual, **group} for group in optimizer.param_groups]
    for key, none in _OF_ALL_GROUPS.items():
        if key not in _FACTS[kind] and any(group[key] != none for group in groups):
            raise ValueError(f"a parameter group has {key}, and {kind} has no such form here: leave it at {none}")
    taken = optimizer.defaults.keys() | _OF_GROUPS
    found = {key: groups[0][key] if key in taken else usual[key] for key in _OF_ALL_GROUPS}
    if _DECOUPLED in optimizer.defaults:
        found[_DECOUPLED] = groups[0][_DECOUPLED]
    check_groups(groups, found)
    return found


def optimizer_section(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The "optimizer" section that a client's optimizer stands for. Raises ValueError where there is none, and TypeError."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise wrong_type("optimizer", optimizer, "a torch.optim.Optimizer")
    name = type(optimizer).__name__
    if name not in _FORMULAS:
        raise ValueError(
            f"an optimizer of class {name} has no formula here: pass one of {', '.join(_FORMULAS)}, or none, and an "
            '"optimizer" section in the configuration'
        )
    kind, keys = _FORMULAS[name]
    defaults = optimizer.defaults
    lacking = next((key for key in keys if key not in defaults), None)
    if lacking is not None:
        raise ValueError(f"{type(optimizer).__module__}.{name} has no {lacking}: pass an optimizer with the formula of {kind}")
    if isinstance(defaults["lr"], torch.Tensor):
        raise ValueError(f"{name} has its lr in a tensor: pass a number")
    if any(state for state in optimizer.state.values() if name != "Adagrad"):
        raise ValueError(f"{name} has stepped before: its states would be lost; pass a new optimizer")
    if getattr(optimizer, "fp32_optimizer_states", True) is False:
        raise ValueError(f'{name} asks for states in the type of the weights: set "sluice": {{"moments": "bf16"}} instead')
    defaults = {**defaults, **_facts_of(optimizer, kind)}
    values = {key: _plain(defaults[key]) for key in keys}
    if kind == "SGD":  # whether there is a buffer, which the groups say
        trained = [group["momentum"] for group in optimizer.param_groups if _trains(group)]
        values["momentum"] = max(trained, default=values["momentum"])
    for key in ("amsgrad", "maximize"):
        if defaults[key]:
            values[key] = True
    for key in ("lr_decay", "initial_accumulator_value"):
        if defaults[key]:
            values[key] = _plain(defaults[key])
    if kind in ("Adam", "AdamW"):
        coupled = not defaults.get(_DECOUPLED, kind == "AdamW")
        mode = getattr(optimizer, "adam_w_mode", defaults.get("adam_w_mode", True))  # of DeepSpeed's classes
        if coupled or not mode:
            kind, values["adam_w_mode"] = "Adam", False
        values["bias_correction"] = bool(defaults["bias_correction"])
    return {"type": kind, "params": values}


def _plain(value: Any) -> Any:
    """A number, or betas, as a configuration has them: scripts have them in NumPy's and PyTorch's types too."""
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, int, float)) else float(value)


def _trains(group: Mapping[str, Any]) -> bool:
    return any(parameter.requires_grad for parameter in group["params"])


_NUMBERS = ("lr", "weight_decay", "eps", "momentum", "dampening")


def values_of(group: Mapping[str, Any], number: int) -> dict[str, float]:
    """A group's values for one step, as the loop takes them. Raises ValueError for one that is no number, with the group's."""
    values, key = {}, "betas"
    try:
        if key in group:
            first, second = group[key]
            values = {"beta1": float(first), "beta2": float(second)}
        for key in _NUMBERS:
            if key in group:
                values[key] = float(group[key])
    except (TypeError, ValueError, RuntimeError):
        expected = "two numbers" if key == "betas" else "a number"
        raise ValueError(f"parameter group {number} has {key}={group[key]!r}: expected {expected}") from None
    return values


# Values of a formula, which the first step fixes.
_FIXED = ("amsgrad", "maximize", "nesterov", "lr_decay", "initial_accumulator_value", _DECOUPLED)


class TierOptimizer(torch.optim.Optimizer):
    """Parameter groups of a model over memory tiers, with the values of the next step; schedulers may change them.

    ``client``: an optimizer whose formula, groups and hooks are taken over. ``groups``: without one, groups that differ from the
    configuration's. ``is_guest``: its engine computes over another one, whose optimizer has the values of the steps. States are
    at their tiers and not in ``state``. Private: the optimizers that users get inherit it.
    """

    def __init__(
        self,
        offloaded: OffloadedModel,
        client: torch.optim.Optimizer | None,
        groups: list[dict[str, Any]] | None = None,
        is_guest: bool = False,
    ) -> None:
        defaults = dict(offloaded.loop.optimizer_values if client is None else client.defaults)
        super().__init__([{"params": []}], defaults)
        if client is not None:
            self.param_groups = client.param_groups  # the list itself, so that its scheduler's changes are seen
            optimizer_hooks.share(client, self)
        else:
            made = offloaded.configured_groups() if groups is None else groups
            self.param_groups = [{**defaults, **group} for group in made]
        self._offloaded = offloaded
        # Weak, since follow() has the client hold this one.
        self._client: Callable[[], torch.optim.Optimizer | None] = (lambda: None) if client is None else weakref.ref(client)
        # Others have no values in a step, but their place in the list, which schedulers count.
        self._stepped = [_trains(group) for group in self.param_groups]
        self._members = [frozenset(group["params"]) for group in self.param_groups]
        self._keys = [{*_NUMBERS, "betas"} & set(group) for group in self.param_groups]
        self._fixed = [{key: group.get(key) or 0 for key in _FIXED} for group in self.param_groups]
        self._step_values()  # raises now for what no step can have
        if not is_guest:
            offloaded.loop.values_by(weakref.WeakMethod(self._step_values))

    def end_step(self) -> Any:
        """Ends the step of the loop with the values of the groups. Returns its StepResult.

        Raises ValueError for groups, or values in them, that are gone or no numbers.
        """
        self._offloaded.check_hidden("a step ends")
        # PyTorch's schedulers ask the optimizer that they were made with whether it has stepped, and warn.
        for asked in (self, self._client()):
            if asked is not None:
                asked._opt_called = True  # type: ignore[attr-defined]
        self._offloaded.check_parameters()
        return self._offloaded.loop.end_step(self._step_values())

    def _step_values(self) -> list[dict[str, float]]:
        client, count = self._client(), len(self._keys)
        if client is not None and client.param_groups is not self.param_groups:
            raise ValueError(
                "the script's optimizer and the one that was made of it have different lists of parameter groups: one was set since. "
                "Change values in the groups, and leave the list as it was"
            )
        if len(self.param_groups) != count:
            raise ValueError(
                f"the optimizer has {len(self.param_groups)} parameter groups, and had {count} when the model was moved to its "
                "tiers: change values in the groups, and leave their list as it was"
            )
        for number, (group, members) in enumerate(zip(self.param_groups, self._members)):
            if frozenset(group.get("params", ())) != members:  # values go to the loop by the place of their group
                raise ValueError(
                    f"parameter group {number} has other parameters than when the model was moved to its tiers: change values in the "
                    "groups, and leave their parameters and their order as they were"
                )
        for number, (group, keys) in enumerate(zip(self.param_groups, self._keys)):
            if not keys <= group.keys():
                raise ValueError(f"parameter group {number} has no {min(keys - group.keys())} any more: set it again")
        for number, (group, fixed) in enumerate(zip(self.param_groups, self._fixed)):
            for key, before in fixed.items():
                if (group.get(key) or 0) != before:
                    raise ValueError(
                        f"parameter group {number} has {key}={group[key]!r}, which is fixed when the model is moved to its tiers: "
                        "give it to the optimizer before, or take it back"
                    )
        values = [values_of(group, number) for number, group in enumerate(self.param_groups)]
        self._check_momentum(values)
        return list(itertools.compress(values, self._stepped))

    def _check_momentum(self, values: list[dict[str, float]]) -> None:
        """Raises ValueError for SGD's momentum in a group without a buffer, and for none in a group with one."""
        loop = self._offloaded.loop
        if "momentum" not in loop.optimizer_values:  # of another formula
            return
        has_buffer = bool(loop.moment_names)
        for number, value in enumerate(values):
            if self._stepped[number] and "momentum" in value and (value["momentum"] > 0) != has_buffer:
                raise ValueError(
                    f"parameter group {number} has momentum={value['momentum']:g}: SGD has momentum above 0 in all groups that train or in "
                    "none, from its first step to its last (1e-30 is as good as none)"
                )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError: the groups are those that the engine was made with."""
        if hasattr(self, "_offloaded"):
            raise ValueError("a parameter group comes too late: give all groups when the model is moved to its tiers")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step so far. Right after a step() nothing: a step uses its gradients up."""
        self._offloaded.hooks.drop_gradients()

    @optimizer_hooks.around_saving
    def state_dict(self) -> dict[str, Any]:
        """The values of the groups, and the steps taken. Moments are in a checkpoint of the engine's, or of :func:`sluice.offload`'s."""
        values = [
            {**{key: value for key, value in group.items() if key != "params"}, NAMES: names_in(self._offloaded.parameters, group)}
            for group in self.param_groups
        ]
        return {"param_groups": values, "steps": int(self._offloaded.loop.step)}

    @optimizer_hooks.around_loading
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
        check_order("the state", saved_groups, [names_in(self._offloaded.parameters, group) for group in self.param_groups])
        for group, saved in zip(self.param_groups, saved_groups):
            group.update({key: value for key, value in saved.items() if key not in ("params", NAMES)})


_FOLLOWED = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")


def follow(client: torch.optim.Optimizer | None, optimizer: TierOptimizer) -> None:
    """A client's methods are those of the optimizer that was made of it: its own would see no gradient and do nothing."""
    if client is None:
        return
    for name in _FOLLOWED:
        setattr(client, name, _followed(optimizer, name))


def _followed(optimizer: TierOptimizer, name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(optimizer, name)(*arguments, **keywords)

    call._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # PyTorch's schedulers wrap a step, or warn that it was replaced
    return call


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
        super().__init__(offloaded, client, groups, engine._is_guest)
        self._engine: Any = engine  # a weak one after destroy()
        self._is_guest = engine._is_guest
        self.overflow = False
        self.parameter_offload = DeepSpeedZeRoOffload(offloaded.model)

    def __getattr__(self, name: str) -> Any:
        raise missing(f"{type(self).__name__!r} object", name)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Itself, as DeepSpeed's wrappers have the wrapped optimizer."""
        return self

    @property
    def clip_grad(self) -> float:
        """Not there, as :meth:`__getattr__` says."""
        raise AttributeError

    @clip_grad.setter
    def clip_grad(self, value: float) -> None:
        raise missing(f"{type(self).__name__!r} object", "clip_grad")

    def set_lr(self, lr: float) -> None:
        """Sets the rate of all groups."""
        for group in self.param_groups:
            group["lr"] = lr

    @property
    def loss_scale(self) -> float:
        """The scale of the loss in fp16, as the engine has it now."""
        return float(self._offloaded.loop.loss_scale)

    cur_scale = loss_scale

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step so far, unless they are another engine's. Right after a step() nothing."""
        if not self._is_guest:
            super().zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """As engine.step(). Raises ValueError for a closure, and after destroy()."""
        if closure is not None:
            raise ValueError("a closure would run the forward again: call engine.backward() and engine.step() instead")
        self._offloaded.loop.check_open()  # the engine may be gone
        self._engine.step()

    step.hooked = True  # type: ignore[attr-defined]  # else PyTorch has it run the hooks, at each micro-batch

    @torch.optim.Optimizer.profile_hook_step
    def with_hooks(self, end_step: Callable[[], None]) -> None:
        """Ends a step between the hooks that are registered with it, or with the client's object, as before and after."""
        end_step()
