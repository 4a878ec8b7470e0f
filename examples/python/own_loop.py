"""A loop of one's own: a model over host memory in 40 lines. python examples/python/own_loop.py [--device nvme --path DIR]"""

import argparse

import sluice
import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", choices=["cpu", "nvme"], default="cpu", help="where weights and states live")
parser.add_argument("--path", help="a directory of the drive, with --device nvme")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

offload = {"device": arguments.device}
if arguments.device == "nvme":
    offload["nvme_path"] = arguments.path
config = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01}},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
    "sluice": {"device": "host"},
}

torch.manual_seed(0)
layers = [nn.Linear(2, 256)] + [nn.Sequential(nn.GELU(), nn.Linear(256, 256)) for _ in range(4)] + [nn.Linear(256, 1)]
model = nn.Sequential(*layers)
optimizer = sluice.offload(model, config)
print(f"{arguments.steps} steps of {sum(p.ds_numel for p in model.parameters()):,} parameters")
for step in range(arguments.steps):
    x = torch.rand(32, 2)
    target = torch.sin(6 * x[:, :1]) * x[:, 1:]
    loss = nn.functional.mse_loss(model(x.bfloat16()).float(), target)
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}, gradient norm {optimizer.gradient_norm:.3f}")
optimizer.close()
