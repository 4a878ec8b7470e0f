"""Parameter groups that an optimizer of another formula made, known by the keys that it leaves in them.

Accelerate makes ``DeepSpeedCPUAdam`` of the groups of nearly every optimizer, and passes on its rate and weight decay alone.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

# Keys that groups of one formula have together. bitsandbytes puts "alpha" into groups of Adam: it tells nothing alone.
_KEYS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SGD", ("momentum", "dampening", "nesterov")),
    ("Adagrad", ("lr_decay", "initial_accumulator_value")),
    ("RMSprop", ("alpha", "centered")),
    ("NAdam", ("momentum_decay",)),
    ("Adadelta", ("rho", "foreach")),
    ("ASGD", ("lambd", "t0")),
    ("Rprop", ("etas", "step_sizes")),
    ("LBFGS", ("max_iter", "history_size")),
    ("Muon", ("momentum", "ns_steps")),
    ("Adafactor", ("beta2_decay",)),  # of PyTorch
    ("Adafactor", ("scale_parameter", "relative_step")),  # of Transformers
    ("AdEMAMix", ("alpha", "t_alpha", "t_beta3")),
    ("GaLore or APOLLO", ("rank", "update_proj_gap")),
    ("a schedule-free optimizer", ("weight_lr_power",)),
)
# All that torch.optim puts into groups of Adamax and RAdam, which lack "amsgrad". Scripts set some of these keys by themselves.
_OF_ADAMAX = ("betas", "eps", "foreach", "maximize", "differentiable", "capturable")
_HAVE_FORMULAS = ("SGD", "Adagrad")
_KEEPS_IT = (
    'Accelerate exchanges optimizers where "offload_optimizer" is set, and "zero_force_ds_cpu_optimizer": false in the '
    "configuration keeps this one"
)


def check(group: Mapping[str, Any], number: int, kind: str, own: str) -> None:
    """Raises ValueError for a group of another formula. ``kind``: the class that would train it. ``own``: its formula."""
    name, sign = _maker(group, own)
    if not name:
        return
    advice = _KEEPS_IT if name in _HAVE_FORMULAS else f"Sluice has no formula of {name}: choose AdamW, Adam, Adagrad or SGD"
    raise ValueError(f"parameter group {number} was made by {name} ({sign}), and {kind} would train it by another formula. {advice}")


def check_loaded(group: Mapping[str, Any], number: int, kind: str, own: str) -> None:
    """As :func:`check`, for a group of a state dict that is loaded."""
    name, sign = _maker(group, own)
    if name:
        raise ValueError(
            f"parameter group {number} of the state dict was made by {name} ({sign}), and {kind} would train on with it by another "
            f"formula. Load a state dict of {kind}, or of {own or 'this class'}, or begin with new states"
        )


# Facts of groups of torch.optim. An engine's loop knows them; of the host optimizers on their own only CPUSGD, one of them.
_OF_ENGINES = ("maximize", "lr_decay", "initial_accumulator_value")


def check_step(group: Mapping[str, Any], number: int, kind: str, known: Container[str]) -> None:
    """Raises ValueError for a fact of a group that a step of a host optimizer would leave out. ``known``: its own."""
    for key in _OF_ENGINES:
        if group.get(key) and key not in known:
            raise ValueError(
                f"parameter group {number} has {key}={group[key]}, which a step of {kind} has not: give the optimizer to "
                "sluice.initialize or sluice.offload, whose step has it, or take it out of the group"
            )


def _maker(group: Mapping[str, Any], own: str) -> tuple[str, str]:
    """The optimizer that made a group, and the sign that tells it. Both are empty for the own formula, and for a script's group."""
    for name, keys in _KEYS:
        of_adam = name == "AdEMAMix" and not group.get("alpha")  # bitsandbytes has one class for both
        if name != own and not of_adam and all(key in group for key in keys):
            return name, "it has " + ", ".join(keys)
    if own == "Adam" and "amsgrad" not in group and all(key in group for key in _OF_ADAMAX):
        return "RAdam" if "decoupled_weight_decay" in group else "Adamax", "it has no amsgrad"
    return "", ""
