"""DeepSpeed's host optimizers over the groups of other ones, which Accelerate hands them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sluice.ops.adagrad import DeepSpeedCPUAdagrad
from sluice.ops.adam import DeepSpeedCPUAdam, FusedAdam
from sluice.ops.lion import DeepSpeedCPULion

# PyTorch's own would raise for gradients that are not sparse, and Sluice's for those that are.
NOT_FOR_DENSE = {"SparseAdam"}
CLASSES = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
FOREIGN = sorted(CLASSES.keys() - NOT_FOR_DENSE - {"Adam", "AdamW"})


def groups_of(name: str, **values: Any) -> list[dict[str, Any]]:
    return CLASSES[name]([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1, **values).param_groups


def a_group(**keys: Any) -> list[dict[str, Any]]:
    return [{"params": [torch.nn.Parameter(torch.ones(2, 2))], **keys}]


@pytest.mark.parametrize("name", FOREIGN)
def test_adam_refuses_the_groups_of_another_formula(name: str) -> None:
    groups = groups_of(name)
    with pytest.raises(ValueError, match=rf"parameter group 0 was made by {name} \(it has .*DeepSpeedCPUAdam would train it by another"):
        DeepSpeedCPUAdam(groups, lr=0.1, weight_decay=0.0, adamw_mode=False)
    assert "bias_correction" not in groups[0]
    with pytest.raises(ValueError, match=f"was made by {name} .*FusedAdam would"):
        FusedAdam(groups)


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(ValueError, match='"zero_force_ds_cpu_optimizer": false in the configuration keeps this one'):
        DeepSpeedCPUAdam(groups_of("SGD", momentum=0.9))
    with pytest.raises(ValueError, match="Sluice has no formula of RMSprop: choose AdamW, Adam, Adagrad or SGD"):
        DeepSpeedCPUAdam(groups_of("RMSprop"))


OTHERS = {
    "Adafactor": {"eps": (1e-30, 1e-3), "clip_threshold": 1.0, "beta1": None, "scale_parameter": False, "relative_step": False},
    "AdEMAMix": {"betas": (0.9, 0.999, 0.9999), "alpha": 5.0, "t_alpha": None, "t_beta3": None},
    "GaLore or APOLLO": {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
    "a schedule-free optimizer": {"betas": (0.9, 0.999), "r": 0.0, "weight_lr_power": 2.0, "train_mode": False},
}


@pytest.mark.parametrize("name", OTHERS)
def test_adam_refuses_the_groups_of_libraries(name: str) -> None:
    with pytest.raises(ValueError, match=f"parameter group 0 was made by {name}"):
        DeepSpeedCPUAdam(a_group(lr=1e-3, weight_decay=0.0, **OTHERS[name]))


def test_a_group_that_comes_later_is_looked_at_too() -> None:
    optimizer = DeepSpeedCPUAdam(a_group())
    with pytest.raises(ValueError, match="parameter group 1 was made by SGD"):
        optimizer.add_param_group(groups_of("SGD")[0])
    with pytest.raises(TypeError):
        optimizer.add_param_group([])  # type: ignore[arg-type]  # as PyTorch's


TAKEN: dict[str, list[dict[str, Any]]] = {
    "Adam": groups_of("Adam"),
    "AdamW": groups_of("AdamW"),
    "a scheduler's": a_group(initial_lr=0.1, lr=0.1),
    "a script's": a_group(name="blocks", lr_scale=0.5, momentum=0.9, alpha=0.1),
    "a script's with options of PyTorch": a_group(foreach=True),
    "a script's with more of them": a_group(betas=(0.9, 0.999), eps=1e-8, maximize=False, foreach=False, fused=None),
    "SAM's": a_group(rho=0.05, adaptive=False),
    "bitsandbytes' AdamW": a_group(betas=(0.9, 0.999), eps=1e-8, alpha=0.0, t_alpha=None, t_beta3=None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_groups_of_adam_and_of_scripts_are_taken(name: str) -> None:
    optimizer = DeepSpeedCPUAdam(TAKEN[name], lr=1e-3)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_decoupled_weight_decay_is_not_coupled_silently() -> None:
    groups = groups_of("Adam", weight_decay=0.1, decoupled_weight_decay=True)
    with pytest.raises(ValueError, match="parameter group 0 has decoupled_weight_decay=True, and adamw_mode=False"):
        DeepSpeedCPUAdam(groups, lr=0.1, weight_decay=0.1, adamw_mode=False)
    DeepSpeedCPUAdam(groups, lr=0.1)


def a_state_dict(source: str, **more: Any) -> dict[str, Any]:
    """Of an optimizer of torch.optim after a step."""
    groups = groups_of(source, **more)
    groups[0]["params"][0].grad = torch.ones(2, 2)
    optimizer = getattr(torch.optim, source)(groups)
    optimizer.step()
    saved: dict[str, Any] = optimizer.state_dict()
    return saved


def test_a_state_dict_of_another_formula_is_refused_with_nothing_loaded() -> None:
    for source in ("NAdam", "RAdam", "Adamax"):
        optimizer = DeepSpeedCPUAdam(a_group(), lr=0.25)
        with pytest.raises(ValueError, match=f"group 0 of the state dict was made by {source} .*of DeepSpeedCPUAdam, or of Adam"):
            optimizer.load_state_dict(a_state_dict(source))
        assert optimizer.param_groups[0]["lr"] == 0.25
        assert not optimizer.state


@pytest.mark.parametrize(("source", "decoupled"), [("Adam", False), ("AdamW", True)])
def test_a_state_dict_whose_weight_decay_has_another_place_is_refused(source: str, decoupled: bool) -> None:
    optimizer = DeepSpeedCPUAdam(a_group(), lr=0.25, adamw_mode=not decoupled)
    optimizer.load_state_dict(a_state_dict(source, weight_decay=0.0))  # it has none
    weight = optimizer.param_groups[0]["params"][0]
    weight.grad = torch.ones(2, 2)
    optimizer.param_groups[0]["weight_decay"] = 0.5
    message = f"group 0 has decoupled_weight_decay={decoupled}, and adamw_mode={not decoupled} .*: pass adamw_mode={decoupled}"
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert weight.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(a_state_dict(source, weight_decay=0.5))
    DeepSpeedCPUAdam(a_group(), adamw_mode=decoupled).load_state_dict(a_state_dict(source, weight_decay=0.5))


def test_adagrad_and_lion_refuse_groups_of_another_formula() -> None:
    assert DeepSpeedCPUAdagrad(groups_of("Adagrad"), lr=0.1).param_groups[0]["eps"] == 1e-10
    for kind, name in ((DeepSpeedCPUAdagrad, "SGD"), (DeepSpeedCPULion, "Adagrad")):
        with pytest.raises(ValueError, match=f"was made by {name} .*{kind.__name__} would"):
            kind(groups_of(name))


@pytest.mark.parametrize("kind", [DeepSpeedCPUAdagrad, DeepSpeedCPULion])
def test_adagrad_and_lion_take_accelerates_argument(kind: Any) -> None:
    weights = []
    for more in ({}, {"adamw_mode": False}, {"adamw_mode": True}):
        group = a_group()
        weight = group[0]["params"][0]
        weight.grad = torch.full((2, 2), 2.0)
        kind(group, lr=0.25, weight_decay=0.5, **more).step()
        weights.append(weight.tolist())
    assert weights[0] == weights[1] == weights[2] != [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("kind", "source", "key", "value"),
    [(DeepSpeedCPUAdam, "AdamW", "maximize", True), (DeepSpeedCPUAdagrad, "Adagrad", "lr_decay", 0.5)],
    ids=["Adam", "Adagrad"],
)
def test_a_step_leaves_no_fact_of_a_group_out(kind: Any, source: str, key: str, value: object) -> None:
    optimizer = kind(groups_of(source, **{key: value}))
    weight = optimizer.param_groups[0]["params"][0]
    weight.grad = torch.full((2, 2), 2.0)
    with pytest.raises(ValueError, match=f"parameter group 0 has {key}={value}, which a step of {kind.__name__} has not"):
        optimizer.step()
    assert weight.tolist() == [[1, 1], [1, 1]]
    optimizer.param_groups[0][key] = 0
    optimizer.step()
