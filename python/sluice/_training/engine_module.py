"""The extension `_engine`, which works with the one PyTorch that it was built for, and its loops as a configuration has them."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .. import config as _config
from .._errors import ConfigError, Error
from ..config import Config, Source, content_of
from . import devices, ranks
from .shown import log_lines

if TYPE_CHECKING:
    from .._engine import Loop

log = logging.getLogger("sluice")


def engine_module() -> Any:
    """The extension. Raises :class:`sluice.Error` in one line where it is missing, or PyTorch is another version."""
    try:
        built_for: str = importlib.import_module("sluice._engine_torch").BUILT_FOR
    except ModuleNotFoundError:
        raise Error(
            "this wheel of sluice was built without PyTorch, so it trains no modules: build it where PyTorch 2.11 to 2.15 is "
            "installed (docs/python.md)"
        ) from None
    if torch.__version__.split("+")[0] != built_for:
        raise Error(
            f"sluice was built for PyTorch {built_for}, and this is PyTorch {torch.__version__}: install torch=={built_for}, "
            "or build sluice beside this one"
        )
    extension = importlib.import_module("sluice._engine")
    log_lines.hand_on(extension)
    return extension


@contextlib.contextmanager
def outside_budget() -> Iterator[None]:
    """Inside, tensors that this thread makes on the CPU take nothing of ``device_bytes``: copies of what an engine holds. They may outlive it."""
    extension = sys.modules.get("sluice._engine")  # None: no engine has a budget
    outside = None if extension is None else extension.OutsideBudget()
    try:
        yield
    finally:
        del outside


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_loop(source: Source | Config, settings: Mapping[str, Any], groups: ranks.Groups, **options: Any) -> Loop:
    """An `_engine.Loop`. ``settings``: values by key path that replace those of the source. After an error the groups are closed.

    A process that ends while a thread of Gloo drops the tensors of its last call aborts; a closed group has no thread.
    """
    try:
        return _loop_of(source, settings, ranks=groups[0], gather_ranks=groups[1], **options)
    except BaseException:
        ranks.close(groups)
        raise


def _loop_of(source: Source | Config, settings: Mapping[str, Any], **options: Any) -> Loop:
    texts = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in settings.items()]
    options["gpu"] = devices.current_gpu()
    make: type[Loop] = engine_module().Loop
    tuned: tuple[str, ...] = ()
    if isinstance(source, Config):
        if source.world_size not in (1, ranks.world_size()):
            raise ValueError(f"the configuration was loaded for {source.world_size} ranks, and {ranks.world_size()} train this module")
        tuned = source.tuned
        source = source.source
    if not isinstance(source, Mapping):
        return make(_config._path_of(source), None, tuned, texts, **options)
    try:
        return make(_config._NAME_OF_DICT, _config._text_of(source), tuned, texts, **options)
    except ConfigError as error:
        raise _config._without_positions(error) from None


def read_beside(source: Source | Config, dtype: torch.dtype) -> Loop:
    """A loop with the values of a configuration, whose engine computes over another one's model in ``dtype``. Every rank calls it.

    Raises ConfigError with every mistake. Warns where the configuration asks for another data type.
    """
    groups = ranks.groups()
    loop = make_loop(source, {}, groups, resident=False, resume=None)
    ranks.close(groups)
    asked = DTYPES[loop.dtype.name]
    if asked != dtype and {"bf16", "bfloat16", "fp16"} & content_of(source).keys() and ranks.rank() == 0:
        log.warning(
            "the configuration asks for %s, and the model has an engine that computes in %s: this engine computes over that one, so in %s",
            *(str(each).removeprefix("torch.") for each in (asked, dtype, dtype)),
        )
    return loop
