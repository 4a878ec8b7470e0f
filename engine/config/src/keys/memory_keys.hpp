#pragma once
// Rows of the table of keys (keys/train_table.cpp): ZeRO, drives, and the section "sluice".

#include "sluice/config/key_table.hpp"

namespace sluice::config {

inline constexpr KeyInfo kMemoryKeys[] = {
    // ZeRO.
    {"zero_optimization", "", "object or bool", "{}", Fate::mapped,
     "true means {\"stage\": 1}, false means {\"stage\": 0} (deprecated form)"},
    {"zero_optimization.stage", "", "integer in [0, 3]", "0", Fate::honoured,
     "what is divided over ranks: 0, 1 and 2 gradients and optimizer states, 3 also weights", "",
     "zero_stage"},
    {"zero_optimization.contiguous_gradients", "", "bool", "true", Fate::mapped,
     "gradients of a unit always lie in one buffer here"},
    {"zero_optimization.reduce_scatter", "", "bool", "true", Fate::mapped,
     "gradients are always reduce-scattered here: an all-reduce would send twice the bytes for "
     "equal "
     "results"},
    {"zero_optimization.reduce_bucket_size", "", "integer >= 0", "5e8", Fate::mapped,
     "gradients are reduced unit by unit here; the result does not depend on it"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", "", "bool", "true", Fate::mapped,
     "gradients are reduced unit by unit here; the result does not depend on it"},
    {"zero_optimization.allgather_partitions", "", "bool", "true", Fate::mapped,
     "weights are gathered unit by unit here; the result does not depend on it"},
    {"zero_optimization.allgather_bucket_size", "", "integer >= 0", "5e8", Fate::mapped,
     "weights are gathered unit by unit here; the result does not depend on it"},
    {"zero_optimization.overlap_comm", "", "bool", "null", Fate::mapped,
     "overlap of every transfer is governed by sluice.overlap", "",
     "comm_overlap, overlap_communication"},
    {"zero_optimization.compute_grad_norm", "", "bool", "true", Fate::mapped,
     "the norm comes with the finite check, so it is always there"},
    {"zero_optimization.parameter_alignment", "", "bool", "false", Fate::mapped,
     "every parameter begins at a multiple of 64 bytes here in any case"},
    {"zero_optimization.load_from_fp32_weights", "", "bool", "true", Fate::mapped,
     "a resumed run always continues from its fp32 weights"},
    {"zero_optimization.elastic_checkpoint", "", "bool", "false", Fate::mapped,
     "a checkpoint here does not depend on the number of ranks"},
    {"zero_optimization.offload_param.device", "", "one of none, cpu, nvme", "\"none\"",
     Fate::honoured, "where weights live; read at stage 3 only, as in DeepSpeed"},
    {"zero_optimization.offload_param.nvme_path", "", "string or list", "null", Fate::honoured,
     "directory; needed with nvme. A list: one on each drive, to stripe over"},
    {"zero_optimization.offload_param.pin_memory", "", "bool", "null", Fate::honoured,
     "page-locked host memory; absent: where copies gain by it, which those of the host device do "
     "not"},
    {"zero_optimization.offload_param.buffer_count", "", "integer in [1, 65536]", "null",
     Fate::honoured, "buffers for reading from NVMe; absent: planned"},
    {"zero_optimization.offload_param.buffer_size", "", "integer >= 1", "null", Fate::honoured,
     "elements of one such buffer; absent: planned"},
    {"zero_optimization.offload_param.max_in_cpu", "", "integer >= 0", "1e9", Fate::mapped,
     "a hint where weights lie; sluice.host_bytes limits host memory"},
    {"zero_optimization.offload_optimizer.device", "", "one of none, cpu, nvme", "\"none\"",
     Fate::honoured,
     "where master weights and moments live and are updated; needs stage 1 or more"},
    {"zero_optimization.offload_optimizer.nvme_path", "", "string or list", "null", Fate::honoured,
     "directory; needed with nvme. A list: one on each drive, to stripe over"},
    {"zero_optimization.offload_optimizer.pin_memory", "", "bool", "null", Fate::honoured,
     "page-locked host memory; absent: where copies gain by it, which those of the host device do "
     "not"},
    {"zero_optimization.offload_optimizer.buffer_count", "", "integer in [1, 65536]", "null",
     Fate::honoured, "buffers of the update's pipeline; absent: planned"},
    {"zero_optimization.offload_optimizer.pipeline_read", "", "bool", "false", Fate::mapped,
     "the update always reads ahead here, unless sluice.overlap is false"},
    {"zero_optimization.offload_optimizer.pipeline_write", "", "bool", "false", Fate::mapped,
     "the update always writes behind here, unless sluice.overlap is false"},
    {"zero_optimization.offload_optimizer.fast_init", "", "bool", "false", Fate::mapped,
     "master weights are always made from the weights directly"},
    {"zero_optimization.offload_optimizer.ratio", "", "number in [0, 1]", "1.0", Fate::honoured,
     "the share of the parameters whose states are in host memory; a GPU keeps and updates the "
     "others, as far as it has room"},
    {"zero_optimization.offload_optimizer.super_offload", "", "bool", "false", Fate::mapped,
     "a hint how the update overlaps; here it always overlaps computing, unless sluice.overlap is "
     "false"},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", "", "number in [0, 1]", "0.8",
     Fate::mapped, "a hint for the cores of the update; sluice.threads sets them"},
    {"zero_optimization.zenflow", "", "object", "null", Fate::refused,
     "without the section every step updates all parameters"},
    {"zero_optimization.sub_group_size", "", "integer >= 0", "1e9", Fate::honoured,
     "elements updated as one group, at most; 0: the smallest groups"},
    {"zero_optimization.stage3_prefetch_bucket_size", "prefetch_bucket_size", "integer >= 0", "5e7",
     Fate::honoured, "elements gathered ahead of use, at most"},
    {"zero_optimization.stage3_param_persistence_threshold", "param_persistence_threshold",
     "integer >= 0", "1e5", Fate::honoured,
     "parameters up to this many elements stay gathered; "
     "in a loop of your own only with EngineOptions::activation_bytes",
     "", "stage3_param_persitance_threshold, stage3_param_persistance_threshold"},
    {"zero_optimization.stage3_model_persistence_threshold", "model_persistence_threshold",
     "integer >= 0", "9223372036854775807", Fate::honoured,
     "elements that stay gathered in all, at most; "
     "in a loop of your own only with EngineOptions::activation_bytes"},
    {"zero_optimization.stage3_max_live_parameters", "max_live_parameters", "integer >= 0", "1e9",
     Fate::honoured, "elements gathered at a time, at most", "",
     "stage3_max_live_params, max_live_params"},
    {"zero_optimization.stage3_max_reuse_distance", "max_reuse_distance", "integer >= 0", "1e9",
     Fate::honoured,
     "keep a unit that is used again within this many elements; "
     "in a loop of your own only with EngineOptions::activation_bytes"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "gather_16bit_weights_on_model_save", "bool", "false", Fate::mapped,
     "whole weights are written with either value, by \"sluice export --dtype bf16\" and by "
     "save_16bit_model() of an engine",
     "",
     "stage3_gather_weights_on_model_save, stage3_gather_bf16_weights_on_model_save, "
     "gather_weights_on_model_save"},
    {"zero_optimization.stage3_module_granularity_threshold", "module_granularity_threshold",
     "integer >= 0", "0", Fate::mapped,
     "units are whole layers here; the result does not depend on it"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", "use_all_reduce_for_fetch_params",
     "bool", "false", Fate::mapped,
     "weights are always all-gathered here: an all-reduce would send twice the bytes for equal "
     "results"},
    {"zero_optimization.stage3_allgather_sequential", "allgather_sequential", "bool", "false",
     Fate::mapped,
     "units are gathered one after the other here, each in place, without a copy into a bucket"},
    {"zero_optimization.ignore_unused_parameters", "", "bool", "true", Fate::refused,
     "without it a parameter that gets no gradient is no error"},
    {"zero_optimization.legacy_stage1", "", "bool", "false", Fate::refused,
     "DeepSpeed refuses it too: remove it"},
    {"zero_optimization.round_robin_gradients", "", "bool", "false", Fate::mapped,
     "gradients are copied to the host unit by unit here; the result does not depend on it", "",
     "round_robin_grads"},
    {"zero_optimization.zero_hpz_partition_size", "", "integer >= 0", "1", Fate::mapped,
     "ZeRO++ keeps a second copy of weights in a node; here a unit is divided over all ranks "
     "once; the result does not depend on it"},
    {"zero_optimization.zero_quantized_weights", "", "bool", "false", Fate::mapped,
     "ZeRO++; on one rank it changes nothing: no weight is sent. Over ranks it is refused: weights "
     "are "
     "not quantized"},
    {"zero_optimization.zero_quantized_nontrainable_weights", "", "bool", "false", Fate::mapped,
     "ZeRO++; on one rank it changes nothing: no weight is sent. Over ranks it is refused: weights "
     "are "
     "not quantized"},
    {"zero_optimization.zero_quantized_gradients", "", "bool", "false", Fate::mapped,
     "ZeRO++; on one rank it changes nothing: no gradient is sent. Over ranks it is refused: "
     "gradients are "
     "not quantized"},
    {"zero_optimization.zeropp_loco_param", "", "object", "null", Fate::mapped,
     "ZeRO++; on one rank it changes nothing: no gradient is sent. Over ranks it is refused: "
     "gradients are "
     "not quantized"},
    {"zero_optimization.mics_shard_size", "", "integer", "-1", Fate::mapped,
     "MiCS divides weights over groups of ranks; here a unit is divided over all ranks; the "
     "result does not depend on it"},
    {"zero_optimization.mics_hierarchical_params_gather", "", "bool", "false", Fate::mapped,
     "of MiCS; here a unit is gathered from all ranks at once; the result does not depend on it"},
    {"zero_optimization.memory_efficient_linear", "", "bool", "true", Fate::mapped,
     "chooses a form of the linear layer in DeepSpeed; layers here are LibTorch's"},
    {"zero_optimization.pipeline_loading_checkpoint", "", "bool", "false", Fate::mapped,
     "weights are read tile by tile here"},
    {"zero_optimization.override_module_apply", "", "bool", "true", Fate::mapped,
     "initial weights are made unit by unit here"},
    {"zero_optimization.log_trace_cache_warnings", "", "bool", "false", Fate::mapped,
     "the order of units is known here before the first step"},
    {"zero_optimization.enable_sanity_checks", "", "bool", "false", Fate::mapped,
     "sizes and states are always checked here"},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", "", "bool", "false", Fate::refused,
     "of the optimizer Muon, which is not here: remove it"},
    {"zero_optimization.leaf_module.classes", "", "list", "[]", Fate::mapped,
     "units are whole layers here; the result does not depend on it"},
    {"zero_optimization.leaf_module.names", "", "list", "[]", Fate::mapped,
     "units are whole layers here; the result does not depend on it"},
    {"zero_optimization.leaf_module.name_suffixes", "", "list", "[]", Fate::mapped,
     "units are whole layers here; the result does not depend on it"},
    {"zero_optimization.cpu_offload", "", "bool", "false", Fate::mapped,
     "deprecated; true means offload_optimizer {\"device\": \"cpu\"}"},
    {"zero_optimization.cpu_offload_param", "", "bool", "false", Fate::mapped,
     "deprecated; true means offload_param {\"device\": \"cpu\"}", "", "cpu_offload_params"},
    {"zero_optimization.cpu_offload_use_pin_memory", "", "bool", "false", Fate::mapped,
     "deprecated, and without effect in DeepSpeed; pin_memory in offload_optimizer has one"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "", "bool", "false",
     Fate::mapped,
     "deprecated; whole weights are written with either value, by \"sluice export --dtype bf16\" "
     "and "
     "by save_16bit_model() of an engine"},
    {"zero_allow_untested_optimizer", "", "bool", "false", Fate::mapped,
     "no optimizer has to be allowed: every one that is there is for every stage"},
    {"zero_force_ds_cpu_optimizer", "", "bool", "true", Fate::mapped,
     "the update is always this project's own, on cores and on a GPU"},

    // NVMe.
    {"aio.block_size", "", "integer in [4096, 1073741824]", "262144", Fate::honoured,
     "bytes of one request; a multiple of 4096"},
    {"aio.queue_depth", "", "integer in [1, 4096]", "32", Fate::honoured, "requests in flight"},
    {"aio.intra_op_parallelism", "", "integer in [1, 64]", "1", Fate::mapped,
     "threads of the I/O backend \"threads\"; io_uring and libaio have one for each drive"},
    {"aio.single_submit", "", "bool", "false", Fate::mapped,
     "large requests enter the kernel one by one in any case, small ones in eights"},
    {"aio.overlap_events", "", "bool", "true", Fate::mapped,
     "the queue is never drained between batches"},
    {"aio.use_gds", "", "bool", "false", Fate::mapped,
     "drives are read into host memory, from which a GPU takes the bytes; the result does not "
     "depend on it"},
    {"aio.thread_count", "", "integer", "1", Fate::mapped,
     "DeepSpeed drops it, whatever its reference says; intra_op_parallelism is the number of "
     "threads"},
    {"aio.num_threads", "", "integer", "1", Fate::mapped,
     "DeepSpeed drops it, whatever its tuner writes; intra_op_parallelism is the number of "
     "threads"},

    // This project's own.
    {"sluice.device", "", "string", "\"auto\"", Fate::honoured,
     "where the model computes: \"host\", \"cuda\" or \"cuda:1\"; auto: a GPU when there is one. "
     "The ranks of a host take its GPUs in turn; all take the one that is named by its number"},
    {"sluice.deterministic", "", "bool", "false", Fate::honoured,
     "on a GPU: only algorithms whose bits do not change between runs; on the host they never do"},
    {"sluice.tf32", "", "bool", "false", Fate::honoured,
     "on a GPU: fp32 matrix products in TF32, with 10 bits of mantissa"},
    {"sluice.device_bytes", "", "bytes", "\"auto\"", Fate::honoured,
     "budget of device memory: bytes, \"64MiB\", \"80%\" or \"auto\""},
    {"sluice.host_bytes", "", "bytes", "\"auto\"", Fate::honoured,
     "budget of host memory: bytes, \"64MiB\", \"80%\" or \"auto\""},
    {"sluice.durability", "", "one of process, power, none", "\"process\"", Fate::honoured,
     "what a committed step survives: a killed process, loss of power, nothing"},
    {"sluice.commit_every", "", "integer in [1, 1e15]", "1", Fate::honoured,
     "steps between commits"},
    {"sluice.checkpoint_dir", "", "string", "null", Fate::honoured,
     "where full checkpoints are written"},
    {"sluice.checkpoint_every", "", "integer in [0, 1e15]", "0", Fate::honoured,
     "steps between full checkpoints; 0: one at the end, of states that are not on NVMe"},
    {"sluice.keep", "", "integer in [1, 1e9]", "2", Fate::honoured, "full checkpoints kept"},
    {"sluice.checkpoint_bytes", "", "bytes", "\"auto\"", Fate::honoured,
     "host memory, part of host_bytes, for copies of the states, so that steps go on while a "
     "checkpoint is written: bytes, \"64MiB\", \"50%\" of the states that are not on NVMe, or "
     "\"auto\" for what host_bytes leaves"},
    {"sluice.strict", "", "bool", "false", Fate::honoured, "every downgrade is an error"},
    {"sluice.approximate", "", "bool", "false", Fate::honoured,
     "train a file of Lamb, 1-bit or 0/1 Adam with AdamW instead of refusing it; a warning names "
     "the "
     "difference"},
    {"sluice.overlap", "", "bool", "true", Fate::honoured,
     "move bytes while computing; false: one thing at a time, the same bits"},
    {"sluice.non_finite", "", "one of skip, stop", "\"skip\"", Fate::honoured,
     "a step whose loss or a gradient is not finite: skip its update, or stop the run before it"},
    {"sluice.threads", "", "object or one of auto", "\"auto\"", Fate::honoured,
     "cores of the pools, as an object, or \"auto\" for all of them"},
    {"sluice.threads.compute", "", "integer in [1, 4096]", "null", Fate::honoured,
     "of forward and backward; absent: chosen"},
    {"sluice.threads.optimizer", "", "integer in [1, 4096]", "null", Fate::honoured,
     "of the update; absent: chosen"},
    {"sluice.threads.io", "", "integer in [1, 64]", "null", Fate::honoured,
     "of the I/O backend \"threads\"; absent: aio.intra_op_parallelism"},
    {"sluice.io.backend", "", "one of auto, io_uring, libaio, threads", "\"auto\"", Fate::honoured,
     "how the drives are read and written; auto: the first of these that works here"},
    {"sluice.io.reads_per_write", "", "integer in [1, 1024]", "3", Fate::honoured,
     "blocks read in a row while a write waits"},
    {"sluice.io.submit_polling", "", "bool", "false", Fate::honoured,
     "io_uring: a thread of the kernel takes new requests without a system call, and a core"},
    {"sluice.io.drive_weights", "", "list", "null", Fate::honoured,
     "shares of the directories of a list of nvme_path, integers from 1 to 64; absent: as fast as "
     "they are measured to be when the run begins"},
    {"sluice.drive_endurance", "", "bytes", "null", Fate::honoured,
     "what the drives are rated to take in their life, \"600TB\": shown against what is written"},
    {"sluice.seed", "", "integer >= 0", "0", Fate::honoured,
     "of initial weights, data order and dropout"},
    {"sluice.groups",
     "",
     "list",
     "[]",
     Fate::honoured,
     "parameter groups: objects with match, a pattern or a list of patterns of names, and the "
     "values "
     "of optimizer.params that differ there",
     {},
     "param_groups, parameter_groups"},
    {"sluice.no_decay",
     "",
     "one of none, biases_and_norms",
     "\"none\"",
     Fate::honoured,
     "parameters without weight decay, except in groups that set one",
     {},
     "no_weight_decay, skip_decay"},
    {"sluice.master", "", "one of fp32, split", "null", Fate::honoured,
     "master weights: fp32, or split into the bf16 weights and their lower halves; absent: split "
     "with bf16"},
    {"sluice.moments", "", "one of fp32, bf16", "null", Fate::honoured,
     "moments; bf16: rounded stochastically, keyed by the seed; absent: fp32"},
    {"sluice.cache_bytes", "", "bytes", "0", Fate::honoured,
     "host memory, part of host_bytes, that holds states of NVMe as well: bytes, \"64MiB\", "
     "\"50%\" of these states, or \"auto\" for what host_bytes leaves"},
    {"sluice.speculative_bytes", "", "bytes", "0", Fate::honoured,
     "host memory, part of host_bytes, for second states, so that updates begin before the norm of "
     "clipping is known, and in loops of one's own before step(): bytes, \"64MiB\", \"50%\" of the "
     "states in host memory, or \"auto\" for what host_bytes leaves"},
    {"sluice.gpu_updates", "", "bool", "false", Fate::honoured,
     "a GPU updates part of the units whose weights are at home there and whose states are in host "
     "memory; the cores update the rest meanwhile"},
    {"sluice.optimizer_in_backward",
     "",
     "bool",
     "false",
     Fate::honoured,
     "in loops of one's own: each unit is updated in the backward that completes its gradient, not "
     "by step(), so its gradient takes no memory until then; without gradient_clipping and fp16",
     {},
     "optimizer_in_bwd, update_in_backward"},
    {"sluice.activations", "", "one of auto, keep, recompute, offload", "\"auto\"", Fate::honoured,
     "activations of a unit until its backward: kept as far as the device budget goes (auto), all "
     "kept, recomputed, or recomputed from inputs in host memory (offload)"},

    {"sluice.micro_batches_per_pass", "", "integer in [1, 1e4]", "null", Fate::honoured,
     "micro-batches of a step that go forward and backward together, layer by layer; absent: all, "
     "on "
     "a GPU as many as their activations fit for"},
    {"sluice.last_pass_micro_batches", "", "integer in [1, 1e4]", "null", Fate::honoured,
     "micro-batches of a step's last pass, beside micro_batches_per_pass: those beyond it are "
     "computed again, and more of the update hides behind backward; absent: as in every pass"},
};

}  // namespace sluice::config
