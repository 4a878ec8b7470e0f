"""Parameter groups of a client's optimizer, and the optimizer that an engine returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .engine import SluiceEngine

# Classes by name, since those of other packages need not be installed: their formula is one of ours.
_ADAMW = ("AdamW", "FusedAdam", "DeepSpeedCPUAdam")
_ADAM = ("Adam",)


def _refuse(name: str) -> ValueError:
    return ValueError(
        f"an optimizer of class {name} has no formula here: pass torch.optim.AdamW or Adam, DeepSpeedCPUAdam, FusedAdam, or "
        'none, and an "optimizer" section in the configuration'
    )


def section_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The "optimizer" section that a client's optimizer stands for. Raises ValueError where there is none."""
    name = type(optimizer).__name__
    if name not in _ADAMW + _ADAM:
        raise _refuse(name)
    defaults = optimizer.defaults
    for key in ("amsgrad", "maximize"):
        if any(group.get(key) for group in optimizer.param_groups):
            raise ValueError(f"{name} with {key}=True: only without {key}")
    if isinstance(defaults["lr"], torch.Tensor):
        raise ValueError(f"{name} has its lr in a tensor: pass a number")
    if optimizer.state:
        raise ValueError(f"{name} has stepped before: its states would be lost; pass a new optimizer")
    decoupled = name in _ADAMW and defaults.get("adam_w_mode", True) is not False
    return {
        "type": "AdamW" if decoupled or defaults.get("decoupled_weight_decay") else "Adam",
        "params": {
            "lr": defaults["lr"],
            "betas": list(defaults["betas"]),
            "eps": defaults["eps"],
            "weight_decay": defaults["weight_decay"],
            "bias_correction": bool(defaults.get("bias_correction", True)),
            **({} if decoupled or defaults.get("decoupled_weight_decay") else {"adam_w_mode": False}),
        },
    }


class SluiceOptimizer(torch.optim.Optimizer):
    """The optimizer of an engine. Its ``param_groups`` hold the rates of the next step; schedulers may change them.

    The engine steps: :meth:`step` is ``engine.step()``. States are at their tiers and not in :attr:`state`.
    """

    def __init__(self, engine: SluiceEngine, groups: list[dict[str, Any]], defaults: Mapping[str, Any]) -> None:
        super().__init__([{"params": []}], dict(defaults))
        self.param_groups = groups  # a client's own list, so that its scheduler's changes are seen
        self._engine = engine
        self.overflow = False

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Itself, as DeepSpeed's wrappers have the wrapped optimizer."""
        return self

    @property
    def loss_scale(self) -> float:
        return float(self._engine.loop.loss_scale)

    cur_scale = loss_scale

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ValueError("a closure would run the forward again: call engine.backward() and engine.step() instead")
        self._engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: a step uses its gradients up."""

    def state_dict(self) -> dict[str, Any]:
        """The values of the groups. The states are in ``engine.save_checkpoint()``."""
        names = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"param_groups": names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update({key: value for key, value in saved.items() if key != "params"})


def groups_of(model_parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's ``model_parameters``: parameters, or dicts of groups."""
    given = list(model_parameters)
    if given and isinstance(given[0], dict):
        return [{**group, "params": list(group["params"])} for group in given]
    return [{"params": [p[1] if isinstance(p, tuple) else p for p in given]}]
