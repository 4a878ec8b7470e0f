"""A convolutional network on images of CIFAR-10's size, by the calls of a DeepSpeed script.

python examples/python/cnn.py --deepspeed_config examples/python/ds_cnn.json [--steps 30]

The images are made here: ten classes, each with a pattern of its own under noise.
"""

import argparse

import sluice
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class Images(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        random = torch.Generator().manual_seed(0)
        self.patterns = torch.randn(10, 3, 32, 32, generator=random)
        self.labels = torch.randint(10, (count,), generator=random)
        self.noise = torch.randn(count, 3, 32, 32, generator=random)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.patterns[self.labels[index]] + self.noise[index], self.labels[index]


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=30)
sluice.add_config_arguments(parser)
arguments = parser.parse_args()

torch.manual_seed(0)
blocks = nn.Sequential(Residual(3, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2))
model = nn.Sequential(blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
engine, _, loader, _ = sluice.initialize(args=arguments, model=model, training_data=Images(2000))
for step, (images, labels) in enumerate(loader):
    if step == arguments.steps:
        break
    loss = nn.functional.cross_entropy(engine(images.to(engine.device)), labels.to(engine.device))
    engine.backward(loss)
    engine.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.4f}")
engine.destroy()
