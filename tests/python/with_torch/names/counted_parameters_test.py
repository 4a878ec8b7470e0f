"""Libraries count the parameters of an engine's model by DeepSpeed's attributes: Lightning's summary, DeepSpeed-Chat."""

from __future__ import annotations

import pickle

import pytest
import torch
from small_models import config, engine_of, make


def test_summaries_count_whole_parameters_and_this_ranks() -> None:
    model = make()
    expected = sum(parameter.numel() for parameter in model.parameters())
    engine = engine_of(model, config())
    assert sum(parameter.ds_numel for parameter in model.parameters()) == expected  # type: ignore[misc]
    # Lightning's DeepSpeedLayerSummary.average_shard_parameters
    assert sum(parameter.partition_numel() for parameter in model.parameters()) == expected
    # DeepSpeed-Chat asks for ds_tensor before it reads ds_numel.
    assert all(parameter.ds_tensor.ds_numel == parameter.ds_numel for parameter in model.parameters())  # type: ignore[union-attr]
    assert all(parameter.ds_tensor.numel() == 0 for parameter in model.parameters())  # type: ignore[union-attr]
    engine.destroy()


def test_a_parameter_with_these_can_be_pickled() -> None:
    engine = engine_of(make(blocks=1), config())
    parameter = next(engine.module.parameters())
    with pytest.raises(TypeError, match="a model under an engine cannot be copied or pickled"):
        pickle.dumps(parameter)
    engine.destroy()
    assert torch.equal(pickle.loads(pickle.dumps(parameter)), parameter)
