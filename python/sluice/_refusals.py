"""Names of DeepSpeed's that Sluice has on purpose not, each with its reason. Errors and docs/deepspeed_names.md say it."""

from __future__ import annotations

import re

_RANKS = "ranks share every unit in one way, all with all"
_REFUSALS: list[tuple[str, str]] = [
    (r"pipe|pipeline|dualpipe", "there are no pipelines: a rank computes every layer"),
    (r"inference|replace_transformer|revert_transformer|hybrid|module_inject|model_implementations", "it is about inference, and Sluice trains"),
    (r"sequence_parallel|seq_parallel|autosp|ulysses", f"{_RANKS}: no sequence parallelism"),
    (r"^(set_|record_|merge_)?tp_|autotp|tensor_parallel|model_parallel|^mpu$|_mp_", f"{_RANKS}: no tensor parallelism"),
    (r"moe|expert|autoep", f"{_RANKS}: experts are ordinary modules, and set_z3_leaf_modules gathers them as one"),
    (r"hpz|hierarch|secondary_tensor|multi_rank", f"{_RANKS}: no second copy in a node"),
    (r"quantiz|compress|onebit|zeroone|fp_quantizer", "nothing is compressed: results would have other bits"),
    (r"sparse", "gradients are dense"),
    (r"flops|wall_clock|breakdown|profil|timers", "engine.report() and torch.profiler show where time goes"),
    (r"eigenvalue|pld|progressive|curriculum|data_efficiency|data_sampling|random_ltd", "the data and the layers are the script's own"),
    (r"monitor|tensorboard|wandb|comet", "keys of the configuration choose monitors: tensorboard, csv_monitor"),
    (r"elastic|nebula|datastates|universal_checkpoint", "there is one format of checkpoints: engine.save_checkpoint"),
    (r"autotuning", "sluice.plan computes what fits, and sluice nvme tune measures a drive"),
    (r"transformer|fused_layer", "layers are those of the model"),
    (r"compile|deepcompile", "engine.compile() compiles units with torch.compile; the engine has no compiler of its own"),
    (r"zenflow|superoffload|super_offload", "updates follow the formula of the optimizer exactly"),
    (r"lamb|muon|lars|multi_tensor", 'the configuration\'s "optimizer" has the formulas that are there'),
    (r"amp|autocast", "bf16 and fp16 of the configuration choose the data type"),
    (
        r"all_?reduce|reduce_scatter|all_to_all|allgather|all_gather|partition|bucket|ipg|coalesc|overlap_comm|nccl|prefetch"
        r"|persistence|max_live|max_reuse|sub_group|round_robin|swap|hook|flat|epilogue|prologue|grads?_|_grads?\b|hp_param|lp_param",
        "it is inside of DeepSpeed's engine: units, homes and gradients are arranged by the plan (engine.report())",
    ),
]


def reason_of(name: str) -> str:
    """Why Sluice has no such name; empty where there is no reason but that nobody needed it."""
    return next((reason for pattern, reason in _REFUSALS if re.search(pattern, name, re.IGNORECASE)), "")


def missing(owner: str, name: str) -> AttributeError:
    """The error of a name that an object lacks: to be raised."""
    reason = reason_of(name)
    return AttributeError(f"{owner} has no attribute {name!r}" + (f": {reason}" if reason else ""))
