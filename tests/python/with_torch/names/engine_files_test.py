"""Loaders of an engine, its weights as dicts and files, and the arguments of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Tied, batch, config, engine_of, loss_of, make, train
from torch import nn

import sluice
from sluice._training import batches


class WithBuffer(nn.Module):
    """A frozen bias, a buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.linear.bias.requires_grad_(False)
        self.register_buffer("aside", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).square().mean()


def numbers(count: int) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.arange(float(count)))


def values_of(loader: Any) -> list[list[float]]:
    return [part[0].tolist() for part in loader]


def test_a_loader_has_micro_batches_of_everything_once() -> None:
    engine = engine_of(make(blocks=1))
    loader = engine.deepspeed_io(numbers(101))
    assert len(loader) == 51
    torch.manual_seed(1)
    first, second = values_of(loader), values_of(loader)  # it begins again
    assert [len(part) for part in first] == [2] * 50 + [1]
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == [float(n) for n in range(101)]
    assert sum(first, []) != sorted(sum(first, []))  # shuffled
    assert first != second
    assert [len(part) for part in values_of(engine.deepspeed_io(numbers(10), 4))] == [4, 4, 2]
    engine.destroy()


@pytest.mark.parametrize("route", ["eval", "predict"])
def test_a_loader_for_evaluation_keeps_the_order(route: str) -> None:
    engine = engine_of(make(blocks=1))
    assert values_of(engine.deepspeed_io(numbers(5), 2, route)) == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="route is 'test'"):
        engine.deepspeed_io(numbers(5), route="test")
    engine.destroy()


def test_a_loader_takes_a_sampler_workers_and_a_function_that_collates() -> None:
    def doubled(parts: list[Any]) -> list[torch.Tensor]:
        return [2 * torch.stack([part[0] for part in parts])]

    engine, _, loader, _ = sluice.initialize(
        model=make(blocks=1), config=config(dataloader_drop_last=True), training_data=numbers(5), collate_fn=doubled
    )
    assert len(loader) == 2
    assert len(values_of(loader)) == 2  # the last, of one sample, is dropped
    backwards = list(range(4, -1, -1))
    again = engine.deepspeed_io(numbers(5), 2, "train", False, data_sampler=backwards, num_local_io_workers=1)
    assert values_of(again) == [[8, 6], [4, 2]]  # collated by the function of initialize()
    own = engine.deepspeed_io(numbers(4), data_sampler=[3, 2], collate_fn=torch.utils.data.default_collate)
    assert values_of(own) == [[3, 2]]
    with pytest.raises(ValueError, match="Dataset"):
        engine.deepspeed_io(iter([1, 2]))
    engine.destroy()


class Nothing(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize("data", [Nothing(), numbers(1)])
def test_training_data_without_a_batch_are_an_error(data: Any) -> None:
    engine = sluice.initialize(model=make(blocks=1), config=config(dataloader_drop_last=True), training_data=data)[0]
    with pytest.raises(ValueError, match="the training data have no batch"):
        engine.train_batch()
    engine.destroy()


def test_training_goes_on_after_a_batch_that_could_not_be_read() -> None:
    read: list[list[float]] = []

    def collate(parts: list[Any]) -> list[torch.Tensor]:
        read.append([float(part[0]) for part in parts])
        if len(read) == 2:
            raise OSError("a sample cannot be read")
        return [torch.tensor([[0, 1]]), torch.tensor([[1, 2]])]

    engine = sluice.initialize(model=make(blocks=1), config=config(), training_data=numbers(6), collate_fn=collate)[0]
    engine.train_batch(loss_fn=loss_of)
    with pytest.raises(OSError, match="a sample cannot be read"):
        engine.train_batch(loss_fn=loss_of)
    engine.train_batch(loss_fn=loss_of)
    assert sorted(number for part in read for number in part) == list(range(6))  # the epoch goes on behind the batch
    engine.train_batch(loss_fn=loss_of)
    assert (len(read), engine.global_steps) == (4, 3)
    engine.destroy()


def test_each_epoch_of_a_rank_has_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    epochs = []
    for rank in range(2):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        sampler = batches.sampler_of(numbers(20), "train", 2)
        epochs.append([list(sampler), list(sampler)])
    (first, second), (others, of_others) = epochs
    assert first != second
    assert sorted(first + others) == sorted(second + of_others) == list(range(20))
    sampler.set_epoch(0)
    assert list(sampler) == others
    for_evaluation = batches.sampler_of(numbers(20), "eval", 2)
    assert list(for_evaluation) == list(for_evaluation) == list(range(1, 20, 2))


class WithExtraState(Tied):
    """A state that is no tensor, as modules of torchmetrics and TransformerEngine have."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


def test_extra_states_are_in_state_dicts_and_files(tmp_path: Path) -> None:
    engine = engine_of(make(WithExtraState))
    states = engine.module_state_dict()
    assert states["_extra_state"] == {"version": 3}
    engine.save_16bit_model(str(tmp_path))
    saved = torch.load(tmp_path / "pytorch_model.bin")
    make(WithExtraState).load_state_dict(saved)
    for found in (states, saved, engine.module.state_dict()):
        assert torch.equal(found["embedding.weight"], make(WithExtraState).embedding.weight)
        assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()  # tied
        assert not any(vars(value) for value in found.values() if isinstance(value, torch.Tensor))
    engine.destroy()


def test_a_state_dict_of_an_engine_has_the_names_that_are_asked_for() -> None:
    engine = engine_of(make(WithBuffer))
    engine.backward(engine(torch.randn(2, 4)))
    engine.step()
    whole = engine.module_state_dict()
    expected = make(WithBuffer).state_dict()
    assert {name: value.shape for name, value in whole.items()} == {name: value.shape for name, value in expected.items()}
    assert whole["norm.num_batches_tracked"] == 1
    trained = engine.module_state_dict(exclude_frozen_parameters=True)
    assert whole.keys() - trained.keys() == {"linear.bias"}  # buffers stay
    named = engine.module_state_dict(prefix="a.")
    assert [name for name in named] == ["a." + name for name in whole]
    own: dict[str, Any] = {"first": 1}
    assert engine.module_state_dict(own, "b.") is own
    assert list(own) == ["first", *("b." + name for name in whole)]
    kept = engine.module_state_dict(keep_vars=True)
    assert kept["linear.weight"] is engine.module.linear.weight
    engine.destroy()


@pytest.mark.parametrize("gathers", [False, True])
def test_weights_are_saved_for_torch_load(gathers: bool, tmp_path: Path) -> None:
    zero = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": gathers}
    engine = engine_of(make(WithBuffer), config("device", bf16={"enabled": True}, zero_optimization=zero))
    whole = engine.module_state_dict()
    assert engine.save_fp16_model(str(tmp_path / "new"), "weights.bin") is True
    assert engine.save_16bit_model(str(tmp_path), exclude_frozen_parameters=True) is True
    engine.destroy()
    saved = torch.load(tmp_path / "new" / "weights.bin")
    assert saved.keys() == whole.keys()
    assert all(torch.equal(saved[name], whole[name]) for name in whole)
    assert saved["linear.weight"].dtype == torch.bfloat16
    assert torch.load(tmp_path / "pytorch_model.bin").keys() == whole.keys() - {"linear.bias"}


def test_a_checkpoint_has_a_tag_and_is_loaded_by_it(tmp_path: Path) -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
    engine = engine_of(make(blocks=1), config(scheduler=warmup))
    train(engine, range(3))
    assert engine.save_checkpoint(tmp_path, tag="best", client_state={"epoch": 7}, save_latest=False) is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best"]
    expected = train(engine, range(3, 5))
    engine.destroy()

    engine = engine_of(make(blocks=1), config(scheduler=warmup))
    fresh = engine.get_lr()
    assert engine.load_checkpoint(tmp_path) == (None, None)  # there is no file latest
    with pytest.raises(FileNotFoundError, match="no checkpoint of this tag"):
        engine.load_checkpoint(tmp_path, tag="worst")
    with pytest.raises(ValueError, match="get_fp32_state_dict_from_zero_checkpoint"):
        engine.load_checkpoint(tmp_path, "best", custom_load_fn=print)
    assert engine.global_steps == 0
    folder, state = engine.load_checkpoint(tmp_path, "best", load_lr_scheduler_states=False)
    assert (folder, state) == (str(tmp_path / "best"), {"epoch": 7})
    assert engine.global_steps == 3
    engine.load_checkpoint(tmp_path, "best")
    assert engine.get_lr() != fresh
    assert train(engine, range(3, 5)) == expected
    engine.destroy()

    other = engine_of(make(blocks=2), config(scheduler=warmup))
    with pytest.raises(sluice.StorageError):
        other.load_checkpoint(tmp_path, "best")
    ids, targets = batch(0)
    assert loss_of(other(ids), targets).isfinite()
    other.destroy()


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("run ", "begins or ends with a blank, which the file `latest` does not keep"),
        ("run\n", "begins or ends with a blank"),
        (" ", "begins or ends with a blank"),
        ("latest", "`latest` is the file that names the newest checkpoint: choose another tag"),
        ("", "a tag is the name of a folder"),
        ("run\udcff", "the path of a checkpoint is UTF-8, and .*udcff' is not"),
    ],
)
def test_a_tag_that_could_not_be_found_again_is_refused(tag: str, message: str, tmp_path: Path) -> None:
    engine = engine_of(make(blocks=1))
    with pytest.raises(ValueError, match=message):
        engine.save_checkpoint(tmp_path, tag=tag)
    assert not list(tmp_path.iterdir())
    engine.destroy()


def test_a_client_state_that_cannot_be_pickled_leaves_no_checkpoint(tmp_path: Path) -> None:
    engine = engine_of(make(blocks=1))
    train(engine, range(1))
    with pytest.raises(Exception, match="pickle"):
        engine.save_checkpoint(str(tmp_path), "bad", client_state={"f": lambda: None})
    assert list((tmp_path / "bad").iterdir()) == []
    engine.destroy()
