#include "sluice/config/train_config.hpp"

#include <algorithm>
#include <utility>

#include "check/checker.hpp"
#include "schedule/train_scheduler.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "train/settings.hpp"
#include "train/train_drives.hpp"
#include "train/train_groups.hpp"
#include "train/train_monitors.hpp"
#include "train/train_optimizer.hpp"
#include "train/train_precision.hpp"
#include "train/train_ranks.hpp"
#include "train/train_sluice.hpp"

namespace sluice::config {

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
    {"num_train_epochs", "give --epochs to sluice train"},
    {"num_epochs", "give --epochs to sluice train"},
    {"epochs", "give --epochs to sluice train"},
    {"max_steps", "give --steps to sluice train"},
    {"checkpoint_dir", "it belongs in \"sluice\""},
    {"zero", kZero},
    {"zero3", kZero},
    {"ZeRO", kZero},
    {"zero_optimization.offload", "did you mean \"offload_optimizer\" or \"offload_param\"?"},
    {"zero_optimization.offload_parameters", "did you mean \"offload_param\"?"},
    {"zero_optimization.max_live_params", "did you mean \"stage3_max_live_parameters\"?"},
    {"zero_optimization.sdma_allgather", "a newer DeepSpeed has it, for AMD GPUs: remove it"},
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
    {"fp16.opt_level", "it is a key of Apex, in its section \"amp\": remove it"},
    {"fp16.fp16_scale_tolerance", "DeepSpeed has no such key either: remove it"},
    {"zero_optimization.find_unused_parameters",
     "DeepSpeed calls it \"ignore_unused_parameters\" now: remove it"},
    {"zero_optimization.grad_hooks",
     "DeepSpeed refuses it too, whatever its reference says: remove it"},
    {"activation_checkpointing.partitioned_activations", "did you mean \"partition_activations\"?"},
};

Schema train_schema() {
  return {
      .keys = key_table(), .is_typed = is_typed_section, .hints = kHints, .ignores_unknown = true};
}

constexpr std::int64_t kMaxBatch = 1'000'000'000;  // as in the table
constexpr const char* kTrainBatch = "train_batch_size";
constexpr const char* kMicroBatch = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

// Derives the missing ones of the three batch sizes, as DeepSpeed does: floor division first, then
// the check of the product.
void derive_batch(TrainConfig& config, bool has_train, bool has_micro, bool has_accumulation) {
  std::int64_t& train = config.train_batch_size;
  std::int64_t& micro = config.micro_batch_size;
  std::int64_t& accumulation = config.gradient_accumulation_steps;
  const std::int64_t ranks = config.world_size;
  if (has_train && has_micro) {
    if (!has_accumulation) accumulation = train / micro / ranks;
  } else if (has_train) {
    if (!has_accumulation) accumulation = 1;
    micro = train / ranks / accumulation;
  } else {
    if (!has_accumulation) accumulation = 1;
    // The table limits both factors to 1e9, so only the ranks can overflow 64 bits.
    if (__builtin_mul_overflow(micro * accumulation, ranks, &train)) train = kMaxBatch + 1;
  }
}

// A file for more ranks trains the same batch with more accumulation.
std::string advice_on_ranks(const TrainConfig& config) {
  const std::int64_t on_one_rank = config.micro_batch_size * config.gradient_accumulation_steps;
  if (on_one_rank < 1 || config.train_batch_size % on_one_rank != 0 || config.world_size != 1)
    return "";
  const std::int64_t ranks = config.train_batch_size / on_one_rank;
  return ". The file is for " + std::to_string(ranks) + " ranks: --gradient-accumulation-steps " +
         std::to_string(config.train_batch_size / config.micro_batch_size) +
         " trains the same batch on one";
}

// After the training batch: why it is no product of the others. `derived`: of which one factor was
// derived by division.
std::string why_no_product(const TrainConfig& config, bool derived) {
  const std::int64_t micro = config.micro_batch_size;
  const std::int64_t accumulation = config.gradient_accumulation_steps;
  const std::string ranks = std::to_string(config.world_size);
  // A factor of 0 was derived: the division left nothing.
  if (accumulation == 0)
    return " is less than one micro batch of " + std::to_string(micro) +
           (config.world_size > 1 ? " on each of " + ranks + " ranks" : "");
  if (micro == 0)
    return " is less than " + std::to_string(accumulation) + " accumulation steps" +
           (config.world_size > 1 ? " on each of " + ranks + " ranks" : "");
  const std::string product =
      std::to_string(micro) + " x " + std::to_string(accumulation) + " x " + ranks;
  return " is not " + product + (derived ? ", the nearest product below it" : "");
}

void read_batch(Checker& checker, TrainConfig& config) {
  for (const char* path : {kTrainBatch, kMicroBatch, kAccumulation}) {
    if (checker.wrong(path)) return;
  }
  const bool has_train = checker.find(kTrainBatch) != nullptr;
  const bool has_micro = checker.find(kMicroBatch) != nullptr;
  const bool has_accumulation = checker.find(kAccumulation) != nullptr;
  checker.read(kTrainBatch, config.train_batch_size);
  checker.read(kMicroBatch, config.micro_batch_size);
  checker.read(kAccumulation, config.gradient_accumulation_steps);
  const char* const blamed = has_train          ? kTrainBatch
                             : has_accumulation ? kAccumulation
                                                : kMicroBatch;
  if (!has_train && !has_micro) {
    for (const char* path : {kMicroBatch, kTrainBatch}) {
      if (checker.is_auto(path)) return checker.add_open_auto(path);
    }
    if (checker.has_problem_with(kMicroBatch)) return;  // an unknown key that leads to it
    checker.add_problem(blamed,
                        "train_batch_size or train_micro_batch_size_per_gpu is required; add one "
                        "of them, or give " +
                            flags_of(kMicroBatch));
    return;
  }
  derive_batch(config, has_train, has_micro, has_accumulation);
  if (config.train_batch_size > kMaxBatch) {
    checker.add_problem(blamed, "the train batch would be more than " +
                                    format_count(static_cast<unsigned long long>(kMaxBatch)) +
                                    " sequences");
    return;
  }
  // Division cannot overflow.
  const std::int64_t per_rank = config.train_batch_size / config.world_size;
  if (config.micro_batch_size > 0 && config.gradient_accumulation_steps > 0 &&
      config.train_batch_size % config.world_size == 0 && per_rank % config.micro_batch_size == 0 &&
      per_rank / config.micro_batch_size == config.gradient_accumulation_steps) {
    return;
  }
  checker.add_problem(blamed, "must be micro batch x accumulation steps x ranks: " +
                                  std::to_string(config.train_batch_size) +
                                  why_no_product(config, !has_micro || !has_accumulation) +
                                  advice_on_ranks(config));
}

OffloadConfig::Device device_of(const std::string& name) {
  if (name == "cpu") return OffloadConfig::Device::cpu;
  return name == "nvme" ? OffloadConfig::Device::nvme : OffloadConfig::Device::none;
}

// `section`: offload_param or offload_optimizer. `deprecated`: the older bool key with this
// meaning.
OffloadConfig read_offload(Checker& checker, const std::string& section,
                           const std::string& deprecated) {
  const std::string path = "zero_optimization." + section;
  OffloadConfig offload;
  std::string device = "none";
  checker.read(path + ".device", device);
  offload.device = device_of(device);
  checker.read(path + ".pin_memory", offload.pin_memory);
  checker.read(path + ".buffer_count", offload.buffer_count);
  checker.read(path + ".buffer_size", offload.buffer_size);
  checker.read(path + ".ratio", offload.ratio);
  if (offload.device == OffloadConfig::Device::nvme) {
    read_nvme_path(checker, path + ".nvme_path", offload);
    if (offload.nvme_path.empty() && !checker.wrong(path + ".nvme_path")) {
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
  if (zero.offload_param.device == Device::none || zero.stage == 3) return;
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

// Applies the sections "aio" and "sluice" of one more file to `config`.
void add_tuned(std::string_view text, const std::string& shown_path, TrainConfig& config) {
  const JsonDocument document(text, shown_path);
  const Schema schema = train_schema();
  Checker checker(document, schema);
  for (const std::string& section : document.root().getMemberNames()) {
    if (section == "aio" || section == "sluice") continue;
    checker.add_problem(section,
                        "a second configuration file replaces keys of \"aio\" and \"sluice\" "
                        "only; move this to the first one");
  }
  read_aio(checker, config.aio);
  read_sluice(checker, config.sluice);
  read_groups(checker, config);
  check_master(checker, config);
  check_passes(checker, config);
  check_directories(checker, config);
  checker.throw_if_wrong();
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
  Schema schema = train_schema();
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
  read_aio(checker, config.aio);
  read_sluice(checker, config.sluice);
  read_groups(checker, config);
  check_master(checker, config);
  check_passes(checker, config);
  check_directories(checker, config);
  checker.throw_if_wrong();
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

TrainConfig load_train_config(const std::string& path, const LoadOptions& options) {
  const std::string decoded = decoded_config(path);
  TrainConfig config = decoded.empty() ? parse_train_config(read_config_file(path), path, options)
                                       : parse_train_config(decoded, "base64", options);
  for (const std::string& tuned : options.tuned_paths)
    add_tuned(read_config_file(tuned), tuned, config);
  return config;
}

}  // namespace sluice::config
