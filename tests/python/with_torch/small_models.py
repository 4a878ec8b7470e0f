"""Small models, their data and configurations, for the tests of engines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sluice

VOCAB, WIDTH, LENGTH = 100, 64, 16


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Tied(nn.Module):
    """Blocks, an embedding that is the head's weight too, and a parameter of the model itself."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Conditioned(nn.Module):
    """A block that embeds a condition by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(LENGTH, LENGTH), nn.SiLU(), nn.Linear(LENGTH, LENGTH))
        self.mix = nn.Linear(LENGTH, LENGTH)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return x + self.mix(x * self.embed(condition))


class CallsInside(nn.Module):
    """Its forward calls a module inside a block from outside the block, as the DiT of diffusers does after its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Conditioned() for _ in range(3)])
        self.out = nn.Linear(LENGTH, 1)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, condition)
        return self.out(x * self.blocks[0].embed(condition))

    @staticmethod
    def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(number)
        return torch.randn(4, LENGTH, generator=random), torch.randn(4, LENGTH, generator=random)


class Fails(torch.autograd.Function):
    """A copy without a backward."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError("on purpose")


def make(model: type[nn.Module] = Tied, **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return model(**arguments)


def batch(number: int, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    ids = torch.randint(0, VOCAB, (2, length + 1), generator=random)
    return ids[:, :-1], ids[:, 1:]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))


def data(number: int = 0) -> torch.Tensor:
    """Inputs of layers of width 8."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def config(tier: str = "cpu", folder: Path | None = None, **keys: Any) -> dict[str, Any]:
    """`tier`: device, cpu or nvme, of weights and states."""
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "gradient_clipping": 0.0,
        "sluice": {"device": "host"},
    }
    if tier != "device":
        offload: dict[str, Any] = {"device": tier}
        if tier == "nvme":
            offload["nvme_path"] = str(folder)
        made["zero_optimization"] = {"stage": 3, "offload_optimizer": offload, "offload_param": copy.deepcopy(offload)}
    made.update(keys)
    return made


def without_optimizer(*given: Any, **keys: Any) -> dict[str, Any]:
    """As config()."""
    made = config(*given, **keys)
    del made["optimizer"]
    return made


# A host device that imitates another one, with memory of its own: weights and gradients move.
MEMORY_OF_ITS_OWN = {"device": "host", "device_bytes": "1GiB"}


def engine_of(model: nn.Module, source: dict[str, Any] | None = None, **arguments: Any) -> sluice.SluiceEngine:
    return sluice.initialize(model=model, config=config() if source is None else source, **arguments)[0]


def train(engine: sluice.SluiceEngine, steps: range) -> list[float]:
    """Losses of the micro-batches."""
    losses = []
    for step in steps:
        for part in range(engine.gradient_accumulation_steps()):
            ids, targets = batch(step * 100 + part)
            loss = loss_of(engine(ids), targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def train_plain(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, parts: int = 1, clip: float = 0) -> list[float]:
    """The same course in plain PyTorch."""
    losses = []
    for step in steps:
        for part in range(parts):
            ids, targets = batch(step * 100 + part)
            loss = loss_of(model(ids), targets)
            (loss / parts).backward()
            losses.append(loss.item())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def equal(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def differences(mine: list[float], theirs: list[float]) -> float:
    """The largest, relative."""
    return max(abs(a - b) / abs(b) for a, b in zip(mine, theirs, strict=True))


def both(model: type[nn.Module], steps: int = 6) -> tuple[list[float], list[float]]:
    """Losses of an engine, and of plain PyTorch."""
    plain = make(model)
    expected = train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01), range(steps))
    engine = engine_of(make(model))
    mine = train(engine, range(steps))
    engine.destroy()
    return mine, expected


def assert_follows(model: type[nn.Module]) -> None:
    """An engine's losses are those of plain PyTorch: the first to the last bit."""
    mine, expected = both(model)
    assert mine[0] == expected[0]
    assert differences(mine, expected) < 1e-6
