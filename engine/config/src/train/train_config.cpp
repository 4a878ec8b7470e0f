#include "sluice/config/train_config.hpp"

#include <algorithm>
#include <utility>

#include "check/checker.hpp"
#include "keys/settings.hpp"
#include "schedule/train_scheduler.hpp"
#include "sluice/base/bytes.hpp"
#include "train/train_batch.hpp"
#include "train/train_drives.hpp"
#include "train/train_groups.hpp"
#include "train/train_monitors.hpp"
#include "train/train_optimizer.hpp"
#include "train/train_precision.hpp"
#include "train/train_ranks.hpp"
#include "train/train_sluice.hpp"

namespace sluice::config {

std::string_view name_of(OffloadConfig::Device device) {
  constexpr std::string_view kNames[] = {"none", "cpu", "nvme"};  // in the order of the enum
  return kNames[static_cast<std::size_t>(device)];
}

namespace {

constexpr const char* kPrecision =
    "write \"bf16\": {\"enabled\": true} or \"fp16\": {\"enabled\": true}; without them the run "
    "computes in fp32";
constexpr const char* kZero = "did you mean \"zero_optimization\"?";
constexpr const char* kNoScaleInBf16 = "bf16 has no loss scale: remove it";

constexpr KeyHint kHints[] = {
    {"batch_size",
     "did you mean \"train_batch_size\", of a whole step, or \"train_micro_batch_size_per_gpu\"?"},
    {"float16", kPrecision},
    {"mixed_precision", kPrecision},
    {"precision", kPrecision},
    {"torch_dtype", kPrecision},
    {"optim", "did you mean \"optimizer\"?"},
    {"optimizer_params", "did you mean \"params\" in \"optimizer\"?"},
    {"scheduler_params", "did you mean \"params\" in \"scheduler\"?"},
    {"lr_scheduler", "did you mean \"scheduler\"?"},
    {"lr_scheduler_type", "did you mean \"type\" in \"scheduler\"?"},
    {"warmup_ratio", "write \"warmup_num_steps\", a number of steps, in \"scheduler.params\""},
    {"scheduler.params.warmup_ratio", "write \"warmup_num_steps\", a number of steps"},
    {"num_train_epochs", "give --epochs to sluice train", true},
    {"num_epochs", "give --epochs to sluice train", true},
    {"epochs", "give --epochs to sluice train", true},
    {"max_steps", "give --steps to sluice train", true},
    {"checkpoint_dir", "it belongs in \"sluice\""},
    {"zero", kZero},
    {"zero3", kZero},
    {"ZeRO", kZero},
    {"zero_optimization.offload", "did you mean \"offload_optimizer\" or \"offload_param\"?"},
    {"zero_optimization.offload_parameters", "did you mean \"offload_param\"?"},
    {"zero_optimization.offload_optim", "did you mean \"offload_optimizer\"?"},
    {"zero_optimization.sdma_allgather", "a newer DeepSpeed has it, for AMD GPUs: remove it"},
    {"flops_profiler.end_step", "one step is profiled: remove it"},
    {"tensorboard.log_dir", "did you mean \"output_path\"?"},
    {"fp16.fp16_opt_level", "it is a key of Apex, in its section \"amp\": remove it"},
    {"fp16_opt_level", "it is a key of Apex, in its section \"amp\": remove it"},
    {"bf16_grad_accum", "write \"data_types\": {\"grad_accum_dtype\": \"bf16\"}"},
    {"model_type", "it is a key of a model's config.json"},
    {"bf16.check_overflow", "did you mean \"check_grad_overflow\"?"},
    {"bf16.loss_scale", kNoScaleInBf16},
    {"bf16.loss_scale_window", kNoScaleInBf16},
    {"bf16.initial_scale_power", kNoScaleInBf16},
    {"bf16.hysteresis", kNoScaleInBf16},
    {"bf16.consecutive_hysteresis", kNoScaleInBf16},
    {"bf16.min_loss_scale", kNoScaleInBf16},
    {"scheduler.params.verbose", "older versions of torch print the rates with it: remove it"},
    {"fp16.opt_level", "it is a key of Apex, in its section \"amp\": remove it"},
    {"fp16.type",
     "it is a key of GPT-NeoX: write \"bf16\": {\"enabled\": true} in place of the section for "
     "bfloat16, or remove it for fp16"},
    {"fp16.fp16_scale_tolerance", "DeepSpeed has no such key either: remove it"},
    {"zero_optimization.find_unused_parameters",
     "DeepSpeed calls it \"ignore_unused_parameters\" now: remove it"},
    {"zero_optimization.grad_hooks",
     "DeepSpeed refuses it too, whatever its reference says: remove it"},
    {"activation_checkpointing.partitioned_activations", "did you mean \"partition_activations\"?"},
};

Schema train_schema(const LoadOptions& options) {
  return {.keys = key_table(),
          .is_typed = is_typed_section,
          .hints = kHints,
          .has_flags = options.has_flags,
          .ignores_unknown = true};
}

// `section`: offload_param or offload_optimizer. `deprecated`: the older bool key with this
// meaning.
OffloadConfig read_offload(Checker& checker, const std::string& section,
                           const std::string& deprecated) {
  const std::string path = "zero_optimization." + section;
  OffloadConfig offload;
  std::string device;
  checker.read(path + ".device", device);
  for (const auto each : {OffloadConfig::Device::cpu, OffloadConfig::Device::nvme}) {
    if (device == name_of(each)) offload.device = each;
  }
  checker.read(path + ".pin_memory", offload.pin_memory);
  checker.read(path + ".buffer_count", offload.buffer_count);
  checker.read(path + ".buffer_size", offload.buffer_size);
  checker.read(path + ".ratio", offload.ratio);
  if (offload.device == OffloadConfig::Device::nvme) {
    read_nvme_path(checker, path + ".nvme_path", offload);
    if (offload.directories.empty() && !checker.wrong(path + ".nvme_path")) {
      checker.add_problem(path + ".nvme_path",
                          "required when the device is nvme; add \"nvme_path\": \"/a/directory\"");
    }
  } else {
    for (const char* key : {".nvme_path", ".buffer_count", ".buffer_size"}) {
      checker.note_without_effect(path + key, "the device is nvme");
    }
  }
  if (offload.device != OffloadConfig::Device::cpu)
    checker.note_without_effect(path + ".ratio", "the device is cpu");
  bool deprecated_on = false;
  checker.read("zero_optimization." + deprecated, deprecated_on);
  if (checker.given("zero_optimization." + deprecated) && checker.given(path)) {
    checker.add_problem("zero_optimization." + deprecated,
                        "deprecated, and " + section + " is given as well; remove it");
  } else if (deprecated_on) {
    offload.device = OffloadConfig::Device::cpu;
  }
  return offload;
}

// The key that asks for the offload: {"device"}, or the deprecated key.
std::string asking_key(const Checker& checker, const std::string& section,
                       const std::string& deprecated) {
  const std::string device = "zero_optimization." + section + ".device";
  return checker.given(device) ? device : "zero_optimization." + deprecated;
}

void check_stage(Checker& checker, ZeroConfig& zero) {
  using Device = OffloadConfig::Device;
  if (checker.wrong("zero_optimization.stage")) return;
  if (zero.offload_optimizer.device != Device::none && zero.stage == 0)
    checker.add_problem(asking_key(checker, "offload_optimizer", "cpu_offload"),
                        "needs zero_optimization.stage 1 or more, which is 0; write \"stage\": 1");
  if (zero.offload_param.device == Device::none || zero.stage == kStageOfShardedWeights) return;
  checker.add_note(asking_key(checker, "offload_param", "cpu_offload_param"),
                   "no effect at ZeRO stage " + std::to_string(zero.stage) +
                       ", as in DeepSpeed: weights stay on the device as far as its budget goes; "
                       "stage 3 offloads them");
  zero.offload_param = {};
}

void read_zero(Checker& checker, ZeroConfig& zero) {
  const std::string path = "zero_optimization";
  if (const Json::Value* value = checker.find(path); value != nullptr && value->isBool()) {
    zero.stage = value->asBool() ? 1 : 0;
  }
  checker.read(path + ".stage", zero.stage);
  zero.offload_param = read_offload(checker, "offload_param", "cpu_offload_param");
  zero.offload_optimizer = read_offload(checker, "offload_optimizer", "cpu_offload");
  check_stage(checker, zero);
  checker.read(path + ".sub_group_size", zero.sub_group_size);
  checker.read(path + ".stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  checker.read(path + ".stage3_max_live_parameters", zero.max_live_parameters);
  checker.read(path + ".stage3_max_reuse_distance", zero.max_reuse_distance);
  checker.read(path + ".stage3_param_persistence_threshold", zero.param_persistence_threshold);
  checker.read(path + ".stage3_model_persistence_threshold", zero.model_persistence_threshold);
  const std::string fp16_save = path + ".stage3_gather_fp16_weights_on_model_save";
  if (checker.given(fp16_save) &&
      checker.given(path + ".stage3_gather_16bit_weights_on_model_save")) {
    checker.add_problem(fp16_save,
                        "deprecated, and stage3_gather_16bit_weights_on_model_save is "
                        "given as well; remove it");
  }
}

void read_aio(Checker& checker, AioConfig& aio) {
  checker.read("aio.block_size", aio.block_size);
  if (aio.block_size % 4096 != 0) {
    checker.add_problem("aio.block_size", "expected a multiple of 4096 bytes (direct I/O), found " +
                                              std::to_string(aio.block_size));
  }
  checker.read("aio.queue_depth", aio.queue_depth);
  checker.read("aio.intra_op_parallelism", aio.intra_op_parallelism);
}

// A split master needs bf16 weights: they are its upper half.
void check_master(Checker& checker, const TrainConfig& config) {
  if (config.sluice.master != MasterFormat::split || config.compute_dtype() == DType::bf16) return;
  checker.add_problem("sluice.master",
                      "\"split\" is for bf16 weights; add \"bf16\": {\"enabled\": true} or "
                      "leave it out");
}

// The last pass may be larger than the others, by some more micro-batches of the step.
void check_last_pass(Checker& checker, const TrainConfig& config) {
  constexpr const char* kPath = "sluice.last_pass_micro_batches";
  const auto& [each, last] = config.sluice.passes;
  if (!last || checker.wrong(kPath)) return;
  if (!each) return checker.add_problem(kPath, "needs micro_batches_per_pass beside it");
  const std::int64_t all = config.gradient_accumulation_steps;
  if (!config.sluice.passes.fit(all)) {
    return checker.add_problem(
        kPath, "must leave a multiple of micro_batches_per_pass, " + std::to_string(*each) +
                   ", of the " + std::to_string(all) +
                   " of gradient_accumulation_steps, and be no less than it, found " +
                   std::to_string(*last));
  }
  if (*last > *each && config.sluice.activations == Activations::keep) {
    checker.add_problem(kPath,
                        "computes activations again, which \"activations\": \"keep\" excludes; "
                        "leave one of them out");
  }
}

void check_passes(Checker& checker, const TrainConfig& config) {
  constexpr const char* kPath = "sluice.micro_batches_per_pass";
  const PassConfig& passes = config.sluice.passes;
  if (checker.wrong(kPath) || config.gradient_accumulation_steps < 1) return;
  check_last_pass(checker, config);
  if (!passes.each || passes.last || passes.fit(config.gradient_accumulation_steps)) return;
  checker.add_problem(kPath, "must divide gradient_accumulation_steps, which is " +
                                 std::to_string(config.gradient_accumulation_steps) + ", found " +
                                 std::to_string(*passes.each));
}

void check_updates(Checker& checker, const TrainConfig& config) {
  constexpr const char* kPath = "sluice.optimizer_in_backward";
  if (!config.sluice.updates.in_backward || !config.updates_need_all_gradients()) return;
  checker.add_problem(
      kPath, config.gradient_clipping > 0
                 ? "gradient_clipping needs the norm of all gradients before the first update: set "
                   "it to 0 (max_grad_norm in the Trainer), or leave this key out"
                 : "fp16 skips a step whose gradients overflow, so no update begins before all "
                   "gradients are there: use bf16, or leave this key out");
}

struct Text {
  std::string text;
  std::string shown_path;
};

// `path`: of a file, or the text itself in base64.
Text text_of(const std::string& path) {
  std::string decoded = decoded_config(path);
  if (!decoded.empty()) return {std::move(decoded), "base64"};
  return {read_config_file(path), path};
}

// The sections that a further file may replace, and the last checks of the whole configuration.
void read_sections_of_sluice(Checker& checker, TrainConfig& config) {
  read_aio(checker, config.aio);
  read_sluice(checker, config.sluice);
  read_groups(checker, config);
  check_master(checker, config);
  check_passes(checker, config);
  check_updates(checker, config);
  check_directories(checker, config);
  checker.throw_if_wrong();
}

// Applies the sections "aio" and "sluice" of one more file to `config`.
void add_tuned(const Text& file, const LoadOptions& options, TrainConfig& config) {
  const JsonDocument document(file.text, file.shown_path);
  const Schema schema = train_schema(options);
  Checker checker(document, schema);
  for (const std::string& section : document.root().getMemberNames()) {
    if (section == "aio" || section == "sluice") continue;
    checker.add_problem(section,
                        "a second configuration file replaces keys of \"aio\" and \"sluice\" "
                        "only; move this to the first one");
  }
  read_sections_of_sluice(checker, config);
  for (std::string& note : checker.take_notes()) config.notes.push_back(std::move(note));
  for (auto& [path, origin] : checker.origins()) config.origins[path] = origin;
}

}  // namespace

TrainConfig parse_train_config(std::string_view text, const std::string& shown_path,
                               const LoadOptions& options) {
  if (options.world_size < 1) {
    throw InvalidArgument("a world size of " + std::to_string(options.world_size) +
                          "; expected at least 1 rank");
  }
  JsonDocument document(text, shown_path);
  std::vector<std::string> replaced = apply_settings(document, options);
  Schema schema = train_schema(options);
  set_moot_sections(document, schema);
  Checker checker(document, schema);
  TrainConfig config;
  config.path = shown_path;
  config.world_size = options.world_size;
  read_batch(checker, config);
  config.optimizer = read_optimizer(checker);
  config.scheduler = read_scheduler(checker, config.optimizer);
  checker.read("gradient_clipping", config.gradient_clipping);
  checker.read("dataloader_drop_last", config.drop_last);
  config.monitors = read_monitors(checker);
  checker.read("steps_per_print", config.monitors.steps_per_print);
  read_zero(checker, config.zero);
  read_precision(checker, config);
  config.zero.reduction = read_reduction(checker);
  check_ranks(checker, config.zero, config.world_size);
  read_sections_of_sluice(checker, config);
  config.notes = std::move(replaced);
  for (std::string& note : checker.take_notes()) config.notes.push_back(std::move(note));
  config.origins = checker.origins();
  return config;
}

bool is_tuned_file(const std::string& path) {
  try {
    const JsonDocument document(read_config_file(path), path);
    const std::vector<std::string> names = document.root().getMemberNames();
    return !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
      return name == "aio" || name == "sluice";
    });
  } catch (const InvalidArgument&) {
    return false;
  }
}

std::string strict_json(const std::string& path) {
  const Text source = text_of(path);
  const JsonDocument document(source.text, source.shown_path);
  if (!document.repeated_keys().empty())
    throw ConfigError(source.shown_path, document.repeated_keys());
  return document.json();
}

TrainConfig load_train_config(const std::string& path, const LoadOptions& options) {
  const Text source = text_of(path);
  TrainConfig config = parse_train_config(source.text, source.shown_path, options);
  for (const std::string& tuned : options.tuned_paths)
    add_tuned({read_config_file(tuned), tuned}, options, config);
  return config;
}

}  // namespace sluice::config
