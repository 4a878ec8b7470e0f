"""fp32 weights of a checkpoint without an engine, by DeepSpeed's names: ``engine.save_checkpoint`` has written it.

One process calls these functions, of several ranks too. They read checkpoints of one or several ranks, of
:func:`sluice.offload` and of ``sluice train`` as well. ``sluice export TAG_FOLDER --out FILE`` writes the weights without
Python. Weights go through a file beside the checkpoint, or in TMPDIR, whose checksums are verified.

``python -m sluice.utils.zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR`` takes the place of DeepSpeed's script in each checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .._training import ranks
from .._training.engine_module import outside_budget
from .._training.owners import owner_of
from .._training.passes.described import undescribe
from .._training.saved import checkpoint, client
from .._training.saved.files import latest_tag, tag_folder, write_bytes, write_weights
from .._training.saved.states import check_ours, states_of
from .._training.saved.weights import weights_of

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "get_model_state_file",
    "get_optim_files",
    "load_state_dict_from_zero_checkpoint",
]

log = logging.getLogger("sluice")

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


@outside_budget()
def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, torch.Tensor]:
    """Weights and buffers in checkpoint_dir/tag by the model's names, in CPU memory: masters, and floating buffers, in fp32.

    ``tag`` None: the one that ``latest`` names, or the folder itself. Tied weights are one tensor with several names.
    ``lazy_mode``: tensors are mapped from a file, and take memory where they are read; else they are copies.

    Raises ValueError where there is no ``latest``, and for frozen parameters, which no checkpoint has, unless
    ``exclude_frozen_parameters``; FileNotFoundError, OSError where the file has no room, and :class:`sluice.StorageError`
    for what is damaged or DeepSpeed's.
    """
    found, frozen = _read(checkpoint_dir, tag)
    if frozen and not exclude_frozen_parameters:
        raise ValueError(
            f"{os.fspath(checkpoint_dir)}: frozen parameters are not in a checkpoint, as {frozen[0]} ({len(frozen)} such): "
            "exclude_frozen_parameters=True gives the others, for load_state_dict(..., strict=False) of a model that has the "
            "frozen ones; load_state_dict_from_zero_checkpoint(model, ...) does so"
        )
    if lazy_mode:
        return found
    copies = {id(value): value.clone() for value in found.values()}
    return {name: copies[id(value)] for name, value in found.items()}


@outside_budget()
def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes what :func:`get_fp32_state_dict_from_zero_checkpoint` gives to ``output_dir``, in the layout of Hugging Face.

    The file is ``pytorch_model.bin`` of torch.save, or ``model.safetensors`` (``safe_serialization``), where tied weights are
    written under each of their names. More than ``max_shard_size`` ("5GB", "200MiB", bytes; None: no limit) goes to several
    files with an index. Memory: a file. Errors are those of that function; ValueError for another size, OSError.
    """
    most = _bytes_of(max_shard_size)
    weights = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters, lazy_mode=True)
    stem, ending = ("model", ".safetensors") if safe_serialization else ("pytorch_model", ".bin")
    shards = list(_shards(weights, most, safe_serialization))
    files = [f"{stem}-{number + 1:05d}-of-{len(shards):05d}{ending}" for number in range(len(shards))]
    if len(shards) == 1:
        files = [stem + ending]
    for file, names in zip(files, shards):
        # Copies: the file of a view would have its whole storage. Only files of safetensors cannot have a tensor twice.
        copies = {id(weights[name]): weights[name].clone() for name in names}
        written = {name: copies[id(weights[name])] for name in names}
        if safe_serialization:
            written = {name: weights[name].clone() for name in names}
        write_weights(os.fspath(output_dir), file, written)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_size_of, {id(value): value for value in weights.values()}.values()))},
            "weight_map": {name: file for file, names in zip(files, shards) for name in names},
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        write_bytes(os.path.join(output_dir, f"{stem}{ending}.index.json"), text.encode())


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str | os.PathLike[str], tag: str | None = None
) -> nn.Module:
    """Moves a model to CPU memory and loads weights and buffers of checkpoint_dir/tag into it. Returns it.

    Frozen parameters keep their values. A model under an engine of one rank leaves it: the engine ends, as by destroy(), and
    the model has values again. Errors are those of :func:`get_fp32_state_dict_from_zero_checkpoint`; ValueError for a model
    under an engine of several ranks, for one that an engine has left empty, and for one with none of the saved names.
    """
    found, _ = _read(checkpoint_dir, tag)
    here = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    unknown = [name for name in found if name not in here]
    if len(unknown) == len(found):
        raise ValueError(f"{os.fspath(checkpoint_dir)} has no parameter of this model: it has {unknown[0]}, and the model has {next(iter(here), 'none')}")
    if unknown:
        log.warning("%s has %s, which the model does not have (%d such)", os.fspath(checkpoint_dir), unknown[0], len(unknown))
    _take_from_engine(model, found)
    model = model.cpu()
    model.load_state_dict(found, strict=False)
    return model


def get_model_state_file(checkpoint_dir: str | os.PathLike[str], zero_stage: int) -> str:
    """DeepSpeed's name of a file that no checkpoint has here. Raises ValueError."""
    raise ValueError(_no_file(checkpoint_dir))


def get_optim_files(checkpoint_dir: str | os.PathLike[str]) -> list[str]:
    """DeepSpeed's name of files that no checkpoint has here, by which Lightning converts. Raises ValueError."""
    raise ValueError(_no_file(checkpoint_dir))


def _no_file(checkpoint_dir: str | os.PathLike[str]) -> str:
    return (
        f"{os.fspath(checkpoint_dir)} has no files of DeepSpeed's: deepspeed.utils.zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict() "
        "writes the weights of a checkpoint, in place of Lightning's function of that name, and "
        "load_state_dict_from_zero_checkpoint(module, ...) loads them"
    )


def _take_from_engine(model: nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Gives empty parameters memory, and those that are not in ``found`` the values that the engine has."""
    emptied = {name: p for name, p in model.named_parameters() if p.numel() == 0 and getattr(p, "ds_numel", 0) > 0}
    owners = {name: owner_of(parameter) for name, parameter in emptied.items()}
    engines = {id(owner.model): owner.model for owner in owners.values() if owner is not None}
    if engines and ranks.world_size() > 1:
        raise ValueError("the model is under an engine of several ranks, and stays there: pass a newly built one")
    values: dict[str, torch.Tensor] = {}
    for name, owner in owners.items():
        if name not in found and owner is None:
            raise ValueError(f"parameter {name} is not in the checkpoint, and its engine, which had the values, has ended: pass a newly built model")
        if name not in found and owner is not None and owner.model.stays_empty():
            values[name] = owner.model.loop.parameter(owner.name)
    for engine in engines.values():
        log.warning("the engine of this model ends: the weights of a checkpoint take the place of its own")
        engine.close()  # parameters have their own data types again, and train again
    for name, parameter in emptied.items():
        if parameter.numel() > 0:
            continue
        if name not in found and name not in values:
            raise ValueError(f"parameter {name} is not in the checkpoint, and its engine could not give its values: pass a newly built model")
        shape, dtype = parameter.ds_shape, parameter.dtype  # type: ignore[attr-defined]
        parameter.data = values[name].to(dtype) if name in values else torch.empty(shape, dtype=dtype, device="cpu")
        undescribe(parameter)


def _read(checkpoint_dir: str | os.PathLike[str], tag: str | None) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Mapped weights and buffers, and the names of frozen parameters of the saved model, as far as they are known."""
    path = os.fspath(checkpoint_dir)
    name = latest_tag(path) if tag is None else str(tag)
    if name is not None:
        folder = tag_folder(path, name, exists=True)
    elif states_of(path):
        folder = path
    else:
        check_ours(path)
        raise ValueError(f"{path} has no file latest, which names a checkpoint: pass tag=, the name of its folder")
    state = checkpoint.find(folder)
    _, saved = client.load(os.path.dirname(state.path), state, keys=())
    found = weights_of(state)
    found |= {name: found[first] for name, first in saved.get("tied", {}).items() if first in found}
    found |= {name: torch.empty(shape) for name, shape in saved.get("no_elements", {}).items()}
    for name, value in saved.get("buffers", {}).items():
        found[name] = value.float() if value.is_floating_point() else value
    return found, saved.get("frozen", [])


def _size_of(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def _shards(weights: dict[str, torch.Tensor], most: int | None, each: bool) -> Iterator[list[str]]:
    """Names of each file, in order. ``each``: tied weights count under each name; else they are in one file."""
    groups: dict[Any, list[str]] = {}
    for name, value in weights.items():
        groups.setdefault(name if each else id(value), []).append(name)
    names: list[str] = []
    size = 0
    for group in groups.values():
        more = _size_of(weights[group[0]])
        if names and most is not None and size + more > most:
            yield names
            names, size = [], 0
        names = [*names, *group]
        size += more
    yield names


def _bytes_of(size: str | int | None) -> int | None:
    if size is None or isinstance(size, int):
        return size
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*((?:[KMGT]I?)?)B?\s*", size.upper())
    if parts is None:
        raise ValueError(f"max_shard_size is {size!r}: expected bytes, or a size such as 5GB or 200MiB")
    return int(float(parts[1]) * _UNITS[parts[2]])


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sluice.utils.zero_to_fp32", description="Writes the fp32 weights of a checkpoint of an engine."
    )
    parser.add_argument("checkpoint_dir", help="the folder with the file latest")
    parser.add_argument("output_dir", help="the folder of the files that are written")
    parser.add_argument("--max_shard_size", default="5GB", help="of a file, such as 5GB (default) or 200MiB")
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors, and not files of torch.save")
    parser.add_argument("-t", "--tag", help="folder of a checkpoint; default: the one that latest names")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="write a checkpoint without them")
    arguments = parser.parse_args()
    convert_zero_checkpoint_to_fp32_state_dict(**vars(arguments))


if __name__ == "__main__":
    _main()
