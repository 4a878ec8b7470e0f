"""Whole parameters, states and gradients of an engine; models that are built in files."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import exit_code_of_fork, small_file_system
from small_models import batch, config, engine_of, loss_of, make, train, train_plain

from sluice import utils, zero
from sluice._training import file_parameters
from sluice._training.passes import changes

TIERS = ("device", "cpu", "nvme")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_states_are_those_of_torch(tier: str, precision: str, tmp_path: Path) -> None:
    plain = make()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    train_plain(plain, optimizer, range(3))
    keys = {} if precision == "fp32" else {"bf16": {"enabled": True}}
    engine = engine_of(make(), config(tier, tmp_path, **keys))
    train(engine, range(3))
    close = {"rtol": 1e-5, "atol": 1e-7} if precision == "fp32" else {"rtol": 0.3, "atol": 2e-2}
    for name, parameter in engine.module.named_parameters():
        reference = plain.get_parameter(name)
        torch.testing.assert_close(utils.safe_get_full_fp32_param(parameter), reference.detach(), **close)
        for key in ("exp_avg", "exp_avg_sq"):
            mine = utils.safe_get_full_optimizer_state(parameter, key)
            torch.testing.assert_close(mine, optimizer.state[reference][key], **close)
    engine.destroy()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("sluice", [{}, {"master": "fp32", "moments": "bf16"}])
def test_what_is_set_is_trained_on(tier: str, sluice: dict[str, str], tmp_path: Path) -> None:
    keys = config(tier, tmp_path, bf16={"enabled": True})
    keys["sluice"].update(sluice)
    engine = engine_of(make(), keys)
    train(engine, range(2))
    parameters = dict(engine.module.named_parameters())
    up = parameters["blocks.1.up.weight"]
    values = torch.linspace(-1, 1, up.ds_numel).view(up.ds_shape)
    others = {name: utils.safe_get_full_fp32_param(p) for name, p in parameters.items() if p is not up}
    utils.safe_set_full_fp32_param(up, values)
    utils.safe_set_full_optimizer_state(up, torch.full(up.ds_shape, 0.25), "exp_avg")
    utils.safe_set_full_optimizer_state(up, torch.ones(up.ds_shape), "exp_avg_sq")
    assert torch.equal(utils.safe_get_full_fp32_param(up), values)
    assert torch.equal(utils.safe_get_full_optimizer_state(up, "exp_avg"), torch.full(up.ds_shape, 0.25))
    assert torch.equal(engine.module_state_dict()["blocks.1.up.weight"], values.bfloat16())
    assert all(torch.equal(utils.safe_get_full_fp32_param(parameters[name]), value) for name, value in others.items())
    train(engine, range(2, 4))
    moved = (utils.safe_get_full_fp32_param(up) - values).abs().max()
    assert 0 < moved < 0.1
    engine.destroy()


def test_gradients_are_those_of_torch_and_can_be_set() -> None:
    plain = make()
    engine = engine_of(make(), config(gradient_accumulation_steps=2))
    head, up = engine.module.head.weight, engine.module.blocks[0].up.weight
    assert utils.safe_get_full_grad(up) is None
    for part in range(2):
        ids, targets = batch(part)
        (loss_of(plain(ids), targets) / 2).backward()
        engine.backward(loss_of(engine(ids), targets))
        for mine, theirs in ((head, plain.head.weight), (up, plain.blocks[0].up.weight)):
            torch.testing.assert_close(utils.safe_get_full_grad(mine), theirs.grad, rtol=1e-5, atol=1e-8)
        if part == 0:
            engine.step()
    before = utils.safe_get_full_fp32_param(up)
    utils.safe_set_full_grad(up, torch.zeros(up.ds_shape))
    engine.step()
    torch.testing.assert_close(utils.safe_get_full_fp32_param(up), before * (1 - 1e-3 * 0.01))
    assert utils.safe_get_full_grad(up) is None
    engine.destroy()


def test_gathered_parameters_are_read_and_changed() -> None:
    reference = make()
    engine = engine_of(make())
    block, head = engine.module.blocks[0], engine.module.head
    with zero.GatheredParameters([*block.parameters(), head.weight]):
        for mine, theirs in zip(block.parameters(), reference.blocks[0].parameters()):
            assert torch.equal(mine, theirs)
        assert head.weight.shape == reference.head.weight.shape
    assert head.weight.numel() == 0
    with zero.GatheredParameters(block.norm.weight, modifier_rank=0), torch.no_grad():
        block.norm.weight.fill_(0.5)
    assert torch.equal(utils.safe_get_full_fp32_param(block.norm.weight), torch.full((64,), 0.5))
    with torch.no_grad():
        reference.blocks[0].norm.weight.fill_(0.5)
    ids, _ = batch(3)
    with torch.no_grad():
        assert torch.equal(engine(ids), reference(ids))
    without_bias = torch.nn.Linear(2, 2, bias=False)
    with zero.GatheredParameters([without_bias.weight, without_bias.bias]), zero.GatheredParameters([], enabled=False):
        pass  # parameters of no engine
    engine.destroy()


def test_frozen_parameters_can_be_changed() -> None:
    model = make()
    model.norm.requires_grad_(False)
    for tier in ("device", "cpu"):
        engine = engine_of(make(), config(tier))
        engine.destroy()
    engine = engine_of(model)
    with zero.GatheredParameters(model.norm.bias, modifier_rank=0), torch.no_grad():
        model.norm.bias.add_(1)
    assert torch.equal(engine.module_state_dict()["norm.bias"], torch.ones(64))
    with pytest.raises(ValueError, match=r"norm\.bias is frozen"):
        utils.safe_get_full_fp32_param(model.norm.bias)
    engine.destroy()


def test_a_change_that_nothing_keeps_is_an_error() -> None:
    engine = engine_of(make())
    block = engine.module.blocks[0]
    with zero.GatheredParameters(engine.module), torch.no_grad():
        engine(batch(0)[0])
    with pytest.raises(ValueError, match=r"blocks\.0\.norm\.weight was written to"), zero.GatheredParameters(block), torch.no_grad():
        block.norm.weight.zero_()
    with pytest.raises(OSError, match="first"), zero.GatheredParameters(block), torch.no_grad():
        block.norm.bias.zero_()
        raise OSError("first")
    engine.destroy()


def test_what_is_not_to_be_changed_has_its_values_again() -> None:
    engine = engine_of(make())
    block = engine.module.blocks[0]
    names = ("norm.weight", "norm.bias")
    before = [utils.safe_get_full_fp32_param(block.get_parameter(name)) for name in names]

    def check() -> None:
        for name, values in zip(names, before):
            assert torch.equal(utils.safe_get_full_fp32_param(block.get_parameter(name)), values)
            assert torch.equal(engine.module_state_dict()[f"blocks.0.{name}"], values)

    beside = r"blocks\.0\.norm\.bias was written to inside GatheredParameters, which was not given it"
    with pytest.raises(ValueError, match=beside), zero.GatheredParameters(block.norm.weight, modifier_rank=0), torch.no_grad():
        block.norm.bias.fill_(5)
    check()
    with pytest.raises(ValueError, match="is for reading"), zero.GatheredParameters(block.norm), torch.no_grad():
        block.norm.weight.fill_(5)
    check()
    with pytest.raises(OSError, match="first"), zero.GatheredParameters(block.norm), torch.no_grad():
        block.norm.weight.fill_(5)
        raise OSError("first")
    check()
    engine.destroy()


@pytest.mark.parametrize("outer", [None, 0])
def test_a_change_inside_another_context_is_kept(outer: int | None) -> None:
    engine = engine_of(make())
    norm = engine.module.blocks[0].norm
    with zero.GatheredParameters(engine.module, modifier_rank=outer), torch.no_grad():
        with zero.GatheredParameters(norm.weight, modifier_rank=0):
            norm.weight.fill_(0.25)
        assert torch.equal(norm.weight, torch.full((64,), 0.25))
        assert norm.bias.numel() == 64
    assert torch.equal(utils.safe_get_full_fp32_param(norm.weight), torch.full((64,), 0.25))
    assert torch.equal(engine.module_state_dict()["blocks.0.norm.weight"], torch.full((64,), 0.25))
    engine.destroy()


def test_data_of_another_type_is_taken() -> None:
    engine = engine_of(make(), config(bf16={"enabled": True}))
    weight = engine.module.blocks[0].norm.weight
    with zero.GatheredParameters(weight, modifier_rank=0):
        weight.data = torch.full(weight.shape, 0.3)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), torch.full((64,), 0.3).bfloat16().float())
    train(engine, range(1))
    engine.destroy()


def test_a_change_that_cannot_be_noted_is_none_for_an_outer_context(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make())
    weight = engine.module.blocks[0].norm.weight
    before = utils.safe_get_full_fp32_param(weight)
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        with pytest.raises(ZeroDivisionError), zero.GatheredParameters(weight, modifier_rank=0):
            weight.fill_(5)
            monkeypatch.setattr(changes.ranks, "share", lambda *_: 1 // 0)
        monkeypatch.undo()
    assert torch.equal(utils.safe_get_full_fp32_param(weight), before)
    engine.destroy()


@pytest.mark.parametrize("modifier", [None, 0])
def test_other_threads_are_refused_inside_a_context(modifier: int | None) -> None:
    engine = engine_of(make(), config())
    head = engine.module.head.weight
    calls = (lambda: engine(batch(0)[0]), lambda: utils.safe_get_full_fp32_param(head), lambda: zero.GatheredParameters(head).__enter__())
    first, second = zero.GatheredParameters(head, modifier), zero.GatheredParameters(engine.module.position)
    with ThreadPoolExecutor(1) as pool:
        first.__enter__()
        second.__enter__()
        for context in (first, second):  # the first one may end first
            for call in calls:
                with pytest.raises(ValueError, match="MainThread is inside GatheredParameters"):
                    pool.submit(call).result()
            context.__exit__()
        pool.submit(train, engine, range(1)).result()
    engine.destroy()


def test_a_weight_that_its_forward_writes_is_refused() -> None:
    for kind in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        model = torch.nn.Sequential(kind(10, 8, max_norm=1.0))
        with pytest.raises(ValueError, match="module 0 has max_norm"):
            engine_of(model)
        engine_of(model.requires_grad_(False), config(optimizer=None)).destroy()
        with pytest.raises(ValueError, match=f"the model, a {kind.__name__}, has max_norm"):
            engine_of(kind(10, 8, max_norm=1.0))


def test_mistakes_are_named() -> None:
    engine = engine_of(make())
    up = engine.module.blocks[0].up.weight
    with pytest.raises(ValueError, match="shape"):
        utils.safe_set_full_fp32_param(up, torch.zeros(3))
    with pytest.raises(ValueError, match="not all finite"):
        utils.safe_set_full_fp32_param(up, torch.full(up.ds_shape, torch.nan))
    with pytest.raises(ValueError, match="no state 'momentum'"):
        utils.safe_get_full_optimizer_state(up, "momentum")
    with pytest.raises(ValueError, match="no parameter of an engine"):
        utils.safe_get_full_fp32_param(torch.nn.Parameter(torch.zeros(2)))
    with pytest.raises(ValueError, match="modifier_rank is 1 of 1"):
        zero.GatheredParameters(up, modifier_rank=1)
    engine.destroy()
    with pytest.raises(ValueError, match="no parameter of an engine"):
        utils.safe_get_full_fp32_param(up)


def test_a_model_built_in_files_trains_with_equal_bits(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)
    with zero.Init(config_dict_or_path=keys):
        model = make()
    assert list(tmp_path.glob("sluice-parameter-*")) == []  # files without names
    reference = engine_of(make(), config())
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(model, keys)
    assert train(engine, range(4)) == expected
    engine.destroy()
    with zero.Init(config_dict_or_path=config()):
        assert torch.equal(make().norm.weight, torch.ones(64))


def test_a_drive_without_room_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with small_file_system(tmp_path, 1 << 20):
        with pytest.raises(OSError, match="No space left.*bytes of a parameter"), zero.Init(
            config_dict_or_path=config("nvme", tmp_path)
        ):
            torch.nn.Linear(1024, 1024)
        assert isinstance(torch.nn.Linear(8, 8).weight, torch.nn.Parameter)  # the context is left


LARGE = """
import json, resource, sys, torch
from sluice import zero
def peak(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) >> 10
before = peak("VmHWM")
with zero.Init(config_dict_or_path=json.loads(sys.argv[1])):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(32)))
print(sum(p.numel() for p in model.parameters()) * 4 >> 20, peak("VmHWM") - before)
"""


def test_building_in_files_takes_little_memory(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LARGE, json.dumps(config("nvme", tmp_path))], capture_output=True, text=True, check=True, timeout=120
    )
    model_mib, peak_mib = map(int, result.stdout.split())
    assert model_mib == 2048
    assert peak_mib < 1400  # 512 MiB of pages and what is written until the next look


def test_resident_libraries_are_no_pages_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, given_back = threading.Semaphore(0), []

    def resident_files() -> int:
        looks.release()
        return 1 << 40

    monkeypatch.setattr(file_parameters, "_resident_files", resident_files)
    pages = file_parameters._Pages()
    monkeypatch.setattr(pages, "give_back", lambda: given_back.append(True))
    mapped = mmap.mmap(-1, 4096)
    pages.add(mapped)
    for _ in range(3):
        assert looks.acquire(timeout=60)
    assert given_back == []


def test_a_forked_child_watches_its_own_pages(tmp_path: Path) -> None:
    def child() -> None:
        with zero.Init(config_dict_or_path=config("nvme", tmp_path)):
            made = torch.nn.Linear(8, 8)
        thread = file_parameters._pages._thread
        assert made is not None and thread is not None and thread.is_alive()

    with zero.Init(config_dict_or_path=config("nvme", tmp_path)):
        mine = torch.nn.Linear(8, 8)
    assert exit_code_of_fork(child) == 0
    assert mine.weight.numel() == 64
