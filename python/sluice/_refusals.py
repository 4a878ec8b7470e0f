"""Names of DeepSpeed's that Sluice has on purpose not, each with its reason. Errors and docs/deepspeed_names.md say it."""

from __future__ import annotations

import opcode
import re
import sys
from types import FrameType

_RANKS = "ranks share every unit in one way, all with all"
_ACTIVATIONS = "PyTorch keeps activations, or computes them again, whole on every rank"
# The first pattern that a name has is its reason, so a narrow one stands before a wide one.
_REFUSALS: list[tuple[str, str]] = [
    (
        r"data_pipeline|eigenvalue|pld|progressive|curriculum|data_efficiency|data_sampling|data_routing|random_ltd",
        "the data and the layers are the script's own",
    ),
    (r"pipe", "there are no pipelines: a rank computes every layer"),
    (r"inference|replace_transformer|revert_transformer|hybrid|module_inject|model_implementations", "it is about inference, and Sluice trains"),
    (r"sequence_parallel|^seq_|auto_?sp|ulysses|^sequence$|fpdt|DistributedAttention", f"{_RANKS}: no sequence parallelism"),
    (r"^(set_|record_|merge_)?tp_|autotp|tensor_parallel|model_parallel|^mpu$|(^|_)mp_|domino", f"{_RANKS}: no tensor parallelism"),
    (r"moe|expert|autoep", f"{_RANKS}: experts are ordinary modules, and set_z3_leaf_modules gathers them as one"),
    (r"hpz|hierarch|secondary_tensor|multi_rank", f"{_RANKS}: no second copy in a node"),
    (r"quantiz|compress|onebit|zeroone|fp_quantizer", "nothing is compressed: results would have other bits"),
    (r"sparse_?(self_?)?attention|sparsity|deepspeed4science|evoformer", "attention is that of the model"),
    (r"sparse", "gradients are dense"),
    (r"^set_train_micro_batch_size$", "the loader decides: set_train_batch_size() changes the micro-batches of a step"),
    (r"^dynamic_loss_scale$", "engine.dynamic_loss_scale() says it"),
    (r"autotuning", "sluice.plan computes what fits, and sluice nvme tune measures a drive"),
    (r"flops", "torch.profiler counts with_flops; sluice train counts those of its own models"),
    (r"wall_clock|breakdown|profil|timers", "engine.report() has bytes and waits, wall_clock_breakdown times of passes, torch.profiler the rest"),
    (r"monitor|tensorboard|wandb|comet", "tensorboard and csv_monitor of the configuration are the monitors, and engine.monitor writes to them"),
    (r"elasticity|elastic_(config|agent)", "the ranks of a run are those that it started with; a checkpoint continues on any number of ranks"),
    (r"elastic|nebula|datastates|universal", "there is one format of checkpoints: engine.save_checkpoint"),
    (r"transformer|fused_layer", "layers are those of the model"),
    (r"compile|deepcompile", "engine.compile() compiles units with torch.compile; the engine has no compiler of its own"),
    (r"op_?builder", "kernels are compiled when Sluice is built, and none later"),
    (r"zenflow|superoffload|super_offload", "updates follow the formula of the optimizer exactly"),
    (r"lamb(?!d)|muon|(^|_)lars|multi_tensor", 'the configuration\'s "optimizer" has the formulas that are there'),
    (r"set_accelerator", "DS_ACCELERATOR=cpu or cuda chooses what get_accelerator() is, and \"sluice\": {\"device\"} where a model computes"),
    (r"rng_?(states_?)?tracker", "without tensor parallelism a rank has PyTorch's generators alone: torch.random.fork_rng()"),
    (
        r"^launcher$",
        "torchrun starts the ranks (torchrun --nproc-per-node N -m sluice.as_deepspeed script.py), or sluice launch (sluice launch "
        "--module sluice.as_deepspeed script.py). In place of a DeepSpeed configuration of accelerate launch, ACCELERATE_USE_DEEPSPEED=true "
        "and ACCELERATE_DEEPSPEED_CONFIG_FILE=ds.json give Accelerate the file",
    ),
    (r"(^|_)amp(_|$)|autocast", "bf16 and fp16 of the configuration choose the data type"),
    (r"^(off|re)load_states$", "states are at their tiers at all times, and the device holds what the plan gives it"),
    (r"clip_", "gradient_clipping of the configuration clips, inside step()"),
    (r"_aml|aws_sm|in_dlts|mpi_discovery|_from_launcher", "the environment says the ranks: torchrun, mpirun or srun start them"),
    (
        r"^has_(all|reduce|coalescing)_|^(allgather|reduce_scatter)_fn$",
        "sluice.comm has the functions of torch.distributed: all_gather_into_tensor, reduce_scatter_tensor",
    ),
    (
        r"(full|local|lazy_init|link)_(hp|grad|fp32_grad)|fp32_grad_for_param|flat_opt_states|hp_fragment|fragment_address",
        "safe_get_full_... and safe_set_full_... of sluice.utils read and set masters, states and gradients",
    ),
    (r"_activations|activations_|activation_to_checkpoint|^get_partition_(size|start)$", _ACTIVATIONS),
    (
        r"all_?reduce|reduce_scatter|all_to_all|allgather|all_gather|partition|bucket|ipg|coalesc|overlap_comm|nccl|prefetch"
        r"|persistence|max_live|max_reuse|sub_group|round_robin|swap|hook|flat|epilogue|prologue|grads?_|_grads?\b|hp_param|lp_param",
        "it is inside of DeepSpeed's engine: units, homes and gradients are arranged by the plan (engine.report())",
    ),
]
_GIVERS = ("missing", "submodule", "__getattr__")  # functions between a name's user and its error


def reason_of(name: str) -> str:
    """Why Sluice has no such name; empty where there is no reason but that nobody needed it."""
    return next((reason for pattern, reason in _REFUSALS if re.search(pattern, name, re.IGNORECASE)), "")


def missing(owner: str, name: str, otherwise: str = "") -> AttributeError | ImportError:
    """The error of a name that an object lacks: to be raised. ``otherwise``: why, where :func:`reason_of` has nothing."""
    reason = reason_of(name) or otherwise
    kind = kind_of_missing(name)
    said = f"{owner} has no attribute {name!r}"
    if kind is ImportError:
        said = f"cannot import name {name!r} from {owner.removeprefix('module ')}"
    return kind(said + (f": {reason}" if reason else ""))


def kind_of_missing(name: str) -> type[AttributeError] | type[ImportError]:
    """ImportError in a line ``from module import name``, which drops the message of an AttributeError.

    A module that is being imported is found by Python itself after an AttributeError.
    """
    frame: FrameType | None = sys._getframe(1)
    module = ""
    while frame is not None and frame.f_code.co_name in _GIVERS:
        module = frame.f_globals["__name__"]
        frame = frame.f_back
    if frame is None or frame.f_code.co_code[frame.f_lasti] != opcode.opmap["IMPORT_FROM"]:
        return AttributeError
    return AttributeError if f"{module}.{name}" in sys.modules else ImportError
