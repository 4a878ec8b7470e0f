// The keys of the training configuration. Names, defaults and meaning: DeepSpeed 0.19's
// configuration reference and source; the section "sluice" is this project's own. docs/config.md
// shows this table.
#include <algorithm>
#include <array>
#include <cstddef>

#include "keys/memory_keys.hpp"
#include "keys/step_keys.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config {

namespace {

// default_json of a refused key: "none" when there is no value that means "off", "never" when the
// key will not be supported and the note says why.
constexpr std::string_view kDeepCompile =
    "of DeepCompile, which changes no result; layers here run as they are";
constexpr std::string_view kNoService =
    "nothing is sent, which needs a network and a Python package: set it to false; tensorboard and "
    "csv_monitor write files that such services import";
constexpr std::string_view kNotSent = "nothing is sent";
constexpr std::string_view kOfEnabled = "it goes with enabled";
constexpr std::string_view kOfStages =
    "of a model in stages (PipelineModule), which there is none of";

constexpr KeyInfo kOtherKeys[] = {
    // Activation checkpointing.
    {"activation_checkpointing.partition_activations", "", "bool", "false", Fate::mapped,
     "over the ranks of a model that is split, which there are none of"},
    {"activation_checkpointing.number_checkpoints", "", "integer", "null", Fate::mapped,
     "sluice.activations says which units are recomputed"},
    {"activation_checkpointing.contiguous_memory_optimization", "", "bool", "false", Fate::mapped,
     "saved activations lie where the plan puts them, without gaps"},
    {"activation_checkpointing.synchronize_checkpoint_boundary", "", "bool", "false", Fate::mapped,
     "a debugging aid of DeepSpeed; no result depends on it"},
    {"activation_checkpointing.profile", "", "bool", "false", Fate::mapped,
     "steps.jsonl has where the seconds of every step went in any case"},
    {"activation_checkpointing.cpu_checkpointing", "", "bool", "false", Fate::honoured,
     "true: as sluice.activations offload"},

    // Printing, profiling, monitoring.
    {"steps_per_print", "", "integer in [1, 1e15]", "null", Fate::honoured,
     "steps between progress lines; absent: every ten seconds"},
    {"dump_state", "", "bool", "false", Fate::mapped,
     "\"sluice config resolve\" prints every value"},
    {"wall_clock_breakdown", "", "bool", "false", Fate::honoured,
     "a line after every step: milliseconds of forward, backward, and the rest of the step; the "
     "monitors get them too"},
    {"memory_breakdown", "", "bool", "false", Fate::honoured,
     "lines after every step: device memory and memory of the machine"},
    {"log_level", "", "string", "null", Fate::mapped, "of DeepSpeed's own log"},
    {"comms_logger.enabled", "", "bool", "false", Fate::honoured,
     "over ranks: a table of the calls by operation and size, at the end and in the report"},
    {"comms_logger.verbose", "", "bool", "false", Fate::honoured,
     "a line for each call of rank 0 too"},
    {"comms_logger.prof_all", "", "bool", "true", Fate::honoured,
     "every operation; false: those of prof_ops"},
    {"comms_logger.debug", "", "bool", "false", Fate::honoured,
     "the table tells calls apart by what they are for, too"},
    {"comms_logger.prof_ops", "", "list", "[]", Fate::honoured,
     "names of operations: all_gather, reduce_scatter, all_reduce, ..., or DeepSpeed's"},
    {"tensorboard.enabled", "", "bool", "false", Fate::honoured,
     "write an event file for TensorBoard"},
    {"tensorboard.output_path", "", "string", "\"\"", Fate::honoured,
     "folder above that of the job; empty: the working folder"},
    {"tensorboard.job_name", "", "string", "\"DeepSpeedJobName\"", Fate::honoured,
     "folder of the event files"},
    {"csv_monitor.enabled", "", "bool", "false", Fate::honoured, "write a CSV file for each value"},
    {"csv_monitor.output_path", "", "string", "\"\"", Fate::honoured,
     "folder above that of the job; empty: the working folder"},
    {"csv_monitor.job_name", "", "string", "\"DeepSpeedJobName\"", Fate::honoured,
     "folder of the CSV files"},
    {"wandb.enabled", "", "bool", "false", Fate::mapped, kNoService, {}, {}, true},
    {"wandb.group", "", "string", "null", Fate::mapped, kNotSent},
    {"wandb.team", "", "string", "null", Fate::mapped, kNotSent},
    {"wandb.project", "", "string", "\"deepspeed\"", Fate::mapped, kNotSent},
    {"comet.enabled", "", "bool", "false", Fate::mapped, kNoService, {}, {}, true},
    {"comet.samples_log_interval", "", "integer", "100", Fate::mapped, kNotSent},
    {"comet.project", "", "string", "null", Fate::mapped, kNotSent},
    {"comet.workspace", "", "string", "null", Fate::mapped, kNotSent},
    {"comet.api_key", "", "string", "null", Fate::mapped, kNotSent},
    {"comet.experiment_name", "", "string", "null", Fate::mapped, kNotSent},
    {"comet.experiment_key", "", "string", "null", Fate::mapped, kNotSent},
    {"comet.online", "", "bool", "null", Fate::mapped, kNotSent},
    {"comet.mode", "", "string", "null", Fate::mapped, kNotSent},
    {"flops_profiler.enabled", "", "bool", "false", Fate::honoured,
     "sluice train: print parameters, multiply-accumulates, times and FLOPS of one step; "
     "wall_clock_breakdown is on then. In Python it has no effect, and a warning says so"},
    {"flops_profiler.recompute_fwd_factor", "", "number in [0, 1]", "0.0", Fate::honoured,
     "forwards that a backward repeats, for its FLOPS"},
    {"flops_profiler.profile_step",
     "",
     "integer in [-1, 1e15]",
     "1",
     Fate::honoured,
     "steps before the one that is profiled: 1 means the second; -1: none is",
     {},
     "start_step"},
    {"flops_profiler.module_depth", "", "integer", "-1", Fate::mapped,
     "the table has a row for each kind of layer"},
    {"flops_profiler.top_modules", "", "integer", "1", Fate::mapped,
     "the table has a row for each kind of layer"},
    {"flops_profiler.detailed", "", "bool", "true", Fate::honoured,
     "with a table of the model's parts"},
    {"flops_profiler.output_file", "", "string", "null", Fate::honoured,
     "file to write; absent: standard output"},
    {"timers.throughput.enabled", "", "bool", "true", Fate::honoured,
     "with steps_per_print, a line of samples per second in DeepSpeed's words"},
    {"timers.throughput.synchronized", "", "bool", "true", Fate::mapped,
     "a step is timed from its start to the start of the next; nothing is synchronised for it"},

    // Checkpoints.
    {"checkpoint.tag_validation", "",
     "one of Warn, Ignore, Fail, WARN, IGNORE, FAIL, warn, ignore, fail", "\"Warn\"", Fate::mapped,
     "compares the tags of ranks, and a checkpoint here is one for all ranks"},
    {"checkpoint.load_universal", "", "bool", "false", Fate::refused,
     "without it a run loads checkpoints of this project, which any number of ranks takes"},
    {"checkpoint.use_node_local_storage", "", "bool", "false", Fate::mapped,
     "sluice.checkpoint_dir says where checkpoints go"},
    {"checkpoint.parallel_write.pipeline_stage", "", "bool", "false", Fate::mapped,
     "there is one stage of a pipeline"},
    {"checkpoint.checkpoint_serialization", "", "bool", "true", Fate::mapped,
     "checkpoints are plain bytes with checksums here"},
    {"checkpoint.writer", "", "object", "null", Fate::mapped,
     "checkpoints are written by this project's own writer"},

    // Data and launching.
    {"dataloader_drop_last", "", "bool", "false", Fate::honoured,
     "with --epochs, an epoch ends with its last whole batch"},
    {"vocabulary_size", "", "integer", "null", Fate::mapped, "the model file has it"},
    {"use_data_before_expert_parallelism", "", "bool", "false", Fate::mapped,
     "the models here have no experts"},
    {"disable_python_gc", "", "bool", "false", Fate::mapped,
     "stops Python's garbage collector between steps; nothing here needs one"},
    {"graph_harvesting", "", "bool", "false", Fate::mapped,
     "chooses CUDA graphs in DeepSpeed; no result depends on it"},
    {"elasticity.enabled", "", "bool", "false", Fate::refused,
     "without it the batch sizes of the file are used as they are"},
    {"elasticity.max_train_batch_size", "", "integer", "2000", Fate::refused, kOfEnabled},
    {"elasticity.micro_batch_sizes", "", "list", "[2, 4, 6]", Fate::refused, kOfEnabled},
    {"elasticity.min_gpus", "", "integer", "1", Fate::refused, kOfEnabled},
    {"elasticity.max_gpus", "", "integer", "10000", Fate::refused, kOfEnabled},
    {"elasticity.min_time", "", "integer", "0", Fate::refused, kOfEnabled},
    {"elasticity.prefer_larger_batch", "", "bool", "true", Fate::refused, kOfEnabled},
    {"elasticity.ignore_non_elastic_batch_info", "", "bool", "false", Fate::refused, kOfEnabled},
    {"elasticity.model_parallel_size", "", "integer", "1", Fate::refused, kOfEnabled},
    {"elasticity.num_gpus_per_node", "", "integer", "1", Fate::refused, kOfEnabled},
    {"elasticity.version", "", "number", "0.2", Fate::refused, kOfEnabled},

    // Compiling.
    {"compile.deepcompile", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.free_activation", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.free_activation_threshold", "", "integer", "10485760", Fate::mapped, kDeepCompile},
    {"compile.offload_activation", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.offload_activation_pin_memory", "", "bool", "true", Fate::mapped, kDeepCompile},
    {"compile.offload_opt_states", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.double_buffer", "", "bool", "true", Fate::mapped, kDeepCompile},
    {"compile.symmetric_memory", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.debug_log", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.offload_parameters", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.sync_before_reduce", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.sync_after_reduce", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.sync_before_allgather", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.sync_after_allgather", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.keep_int_input_tensors", "", "bool", "true", Fate::mapped, kDeepCompile},
    {"compile.keep_all_input_tensors", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.autoep_non_moe", "", "bool", "false", Fate::mapped, kDeepCompile},
    {"compile.passes", "", "list", "null", Fate::mapped, kDeepCompile},
    {"compile.enabled", "", "bool", "false", Fate::mapped,
     "of torch.compile, in earlier releases of DeepSpeed; layers here are not compiled"},
    {"compile.disable", "", "bool", "false", Fate::mapped,
     "of torch.compile; layers here are not compiled"},
    {"compile.backend", "", "string", "\"inductor\"", Fate::mapped,
     "of torch.compile; layers here are not compiled"},
    {"compile.kwargs", "", "object", "{}", Fate::mapped,
     "of torch.compile; layers here are not compiled"},

    // Other features of DeepSpeed.
    {"pipeline.stages", "", "string or integer", "\"auto\"", Fate::refused,
     "without it the model is one stage"},
    {"pipeline.partition", "", "string", "\"best\"", Fate::mapped, kOfStages},
    {"pipeline.seed_layers", "", "bool", "false", Fate::mapped, kOfStages},
    {"pipeline.activation_checkpoint_interval", "", "integer", "0", Fate::mapped, kOfStages},
    {"pipeline.pipe_partitioned", "", "bool", "true", Fate::mapped, kOfStages},
    {"pipeline.grad_partitioned", "", "bool", "true", Fate::mapped, kOfStages},
    {"progressive_layer_drop.enabled", "", "bool", "false", Fate::refused,
     "without it every layer runs in every step"},
    {"progressive_layer_drop.theta", "", "number", "1.0", Fate::refused, kOfEnabled},
    {"progressive_layer_drop.gamma", "", "number", "0.001", Fate::refused, kOfEnabled},
    {"hybrid_engine", "", "object", "{}", Fate::refused,
     "without it the run trains and does not generate"},
    {"autotuning", "", "object", "{}", Fate::mapped,
     "for DeepSpeed's launcher; here the plan chooses, and \"sluice plan --probe\" and \"sluice "
     "nvme tune\" measure"},
    {"data_efficiency", "", "object", "{}", Fate::refused,
     "without it every step draws whole sequences from all data"},
    {"curriculum_learning", "", "object", "{}", Fate::refused,
     "without it every step has sequences of full length"},
    {"expert_parallel", "", "object", "{}", Fate::refused, "the models here have no experts"},
    {"tensor_parallel", "", "object", "{}", Fate::refused,
     "without it the model is whole on its rank, as with an autotp_size of 1"},
    {"weight_quantization", "", "object", "{}", Fate::refused,
     "without it the weights are not quantized"},
    {"compression_training", "", "object", "{}", Fate::refused,
     "without it the model trains uncompressed"},
    {"sparse_attention", "", "object", "{}", Fate::refused, "without it attention is dense"},
    {"eigenvalue", "", "object", "{}", Fate::refused,
     "only quantized training reads it: remove it"},
    {"quantize_training", "", "object", "{}", Fate::refused,
     "without it the weights are not quantized"},
    {"nebula", "", "object", "{}", Fate::refused, "sluice.checkpoint_dir writes checkpoints"},
    {"datastates_ckpt", "", "object", "{}", Fate::refused,
     "sluice.checkpoint_dir writes checkpoints"},
};

template <std::size_t... Counts>
constexpr auto joined(const KeyInfo (&... tables)[Counts]) {
  std::array<KeyInfo, (Counts + ...)> all{};
  std::size_t at = 0;
  ((at = static_cast<std::size_t>(std::copy(tables, tables + Counts, all.begin() + at) -
                                  all.begin())),
   ...);
  return all;
}

}  // namespace

std::string_view name_of(Fate fate) {
  switch (fate) {
    case Fate::honoured:
      return "honoured";
    case Fate::mapped:
      return "mapped";
    case Fate::inert:
      return "inert";
    case Fate::refused:
      return "refused";
  }
  return "";
}

std::span<const KeyInfo> key_table() {
  static constexpr auto kTrainKeys = joined(kStepKeys, kMemoryKeys, kOtherKeys);
  return kTrainKeys;
}

}  // namespace sluice::config
