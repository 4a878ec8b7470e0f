"""`sluice.initialize` and what a script calls before it, with DeepSpeed's names."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ._arguments import check
from ._training import ranks
from ._training.units import Choice
from .comm import init_distributed
from .config import Config, Source
from .engine import Schedule, SluiceEngine


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Schedule | None = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[..., Any] | None = None,
    config: Source | Config | None = None,
    mesh_param: Any = None,
    config_params: Source | Config | None = None,
    *,
    units: Choice = None,
    resume: bool | None = None,
    progress: bool = False,
) -> tuple[SluiceEngine, Any, Any, Any]:
    """Moves a model to the memory tiers of a DeepSpeed configuration. Returns engine, optimizer, loader and scheduler.

    ``model``: in CPU memory, on the GPU that computes, or in the files of ``zero.Init``. Its parameters become empty,
    except while their unit computes; in between ``engine.state_dict()`` and ``sluice.zero.GatheredParameters`` have the
    values. ``config`` (or ``config_params``, or ``args.deepspeed_config``): a path, a dict, a
    :class:`sluice.config.Config`, or a file's text in url-safe base64. ``optimizer``: one that has not stepped, of
    torch.optim's AdamW, Adam, Adagrad and SGD, DeepSpeed's CPU and fused classes, ``sluice.ops`` or Lion; or a function
    that makes one; without, the configuration's. Without either the engine only computes: parameters have no gradients, and
    no states are planned. It gives way to a later engine with an optimizer. A model that has an engine: the new one computes
    over it, with its device and data type, and with micro-batches of its own. ``model_parameters``: the
    parameters or groups for the optimizer that the configuration names or the function makes; else ignored. ``lr_scheduler``: an
    object with step(), or a function that makes one from the optimizer, in place of the configuration's.
    ``training_data``: a dataset; the loader yields micro-batches.

    ``units``: the modules that are gathered as one, by name or class; None: found by Sluice. ``resume``: None:
    drives are scratch memory, and ``engine.save_checkpoint`` saves. True: continues from the state that a process before
    committed to ``nvme_path`` or ``checkpoint_dir``, where there is one. False: begins anew, commits, and refuses to
    overwrite such a state. ``progress``: steps of more than a second have a bar on a terminal.

    Raises ConfigError with every mistake, :class:`sluice.DoesNotFit`, TypeError, ValueError, OSError, MemoryError.

    >>> engine, optimizer, _, _ = sluice.initialize(model=model, config="ds.json")
    >>> for batch in loader:
    ...     loss = engine(batch)
    ...     engine.backward(loss)
    ...     engine.step()
    """
    if model is None:
        raise ValueError("sluice.initialize needs a model")
    check(model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, collate_fn=collate_fn, resume=resume)
    for name, value in (("mpu", mpu), ("mesh_param", mesh_param)):
        if value is not None:
            raise ValueError(f"{name}: ranks share the parameters of a model in one way only, all with all")
    if (ranks.world_size() > 1 or "RANK" in os.environ) and dist_init_required is not False:
        init_distributed()  # scripts that a launcher started ask torch.distributed for their rank
    _check_accelerate()
    engine = SluiceEngine(
        model,
        _one_config(args, config if config is not None else config_params),
        optimizer=optimizer,
        model_parameters=model_parameters,
        lr_scheduler=lr_scheduler,
        training_data=training_data,
        collate_fn=collate_fn,
        units=units,
        resume=resume,
        progress=progress,
    )
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _check_accelerate() -> None:
    """Raises ValueError where Accelerate, if a script uses it, gives out batches for another number of ranks.

    Without a GPU it takes each rank for the only process, unless it is told to use the CPU.
    """
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    counted = getattr(state, "_shared_state", {}).get("num_processes")
    if counted is None or counted == ranks.world_size():
        return
    processes = "1 process" if counted == 1 else f"{counted} processes"
    raise ValueError(
        f"Accelerate counts {processes}, and this run has {ranks.world_size()} ranks: they would not share the batches as they "
        "share the model. Without a GPU, write TrainingArguments(use_cpu=True), or, with a class of accelerate.utils, "
        'Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])'
    )


def _one_config(args: Any, config: Source | Config | None) -> Source | Config:
    in_args: Source | Config | None = getattr(args, "deepspeed_config", None)
    if config is None:
        if in_args is None:
            raise ValueError("a configuration is missing: pass config=, a path or a dict, or --deepspeed_config")
        return in_args
    if in_args is not None:
        raise ValueError("there are two configurations: args.deepspeed_config and config")
    return config


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed`` and ``--deepspeed_config`` to a script's arguments."""
    group = parser.add_argument_group("Sluice", "in DeepSpeed's words")
    group.add_argument("--deepspeed", action="store_true", help="for scripts that ask whether it is given")
    group.add_argument("--deepspeed_config", type=str, default=None, help="DeepSpeed JSON file")
    return parser
