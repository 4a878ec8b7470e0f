#include "sluice/config/train_config.hpp"

#include "check/checker.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "train/train_drives.hpp"
#include "train/train_optimizer.hpp"
#include "train/train_precision.hpp"
#include "train/train_sluice.hpp"

namespace sluice::config {

namespace {

// Sections that DeepSpeed reads through pydantic models, which drop "auto".
constexpr std::string_view kAutoSections[] = {
    "zero_optimization", "fp16",          "bf16",
    "comms_logger",      "tensorboard",   "wandb",
    "csv_monitor",       "comet",         "compile",
    "timers.throughput", "hybrid_engine", "tensor_parallel"};

constexpr KeyHint kHints[] = {
    {"aio.thread_count",
     "unknown key; DeepSpeed drops it, whatever its reference says, and reads "
     "\"intra_op_parallelism\": rename or remove it"},
    {"aio.num_threads",
     "unknown key; DeepSpeed drops it, whatever its tuner writes, and reads "
     "\"intra_op_parallelism\": rename or remove it"},
    {"bf16.check_overflow", "unknown key; did you mean \"check_grad_overflow\"?"},
    {"zero_optimization.grad_hooks",
     "unknown key; DeepSpeed refuses it too, whatever its reference "
     "says: remove it"},
};

Schema train_schema() {
  return {key_table(), kAutoSections, kHints};
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
  const char* const blamed = has_train ? kTrainBatch : has_micro ? kMicroBatch : kAccumulation;
  if (!has_train && !has_micro) {
    checker.add_problem(blamed, "train_batch_size or train_micro_batch_size_per_gpu is required");
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
                                  std::to_string(config.train_batch_size) + " is not " +
                                  std::to_string(config.micro_batch_size) + " x " +
                                  std::to_string(config.gradient_accumulation_steps) + " x " +
                                  std::to_string(config.world_size));
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

void require_stage(Checker& checker, const OffloadConfig& offload, const std::string& section,
                   int stage, int needed) {
  if (offload.device == OffloadConfig::Device::none || stage >= needed) return;
  if (checker.wrong("zero_optimization.stage")) return;
  const std::string path = "zero_optimization." + section;
  const std::string device = path + ".device";
  const std::string deprecated =
      "zero_optimization." +
      std::string(section == "offload_param" ? "cpu_offload_param" : "cpu_offload");
  checker.add_problem(checker.given(device) ? device : deprecated,
                      "needs zero_optimization.stage " + std::to_string(needed) +
                          (needed < 3 ? " or more" : "") + ", which is " + std::to_string(stage));
}

void read_zero(Checker& checker, ZeroConfig& zero) {
  const std::string path = "zero_optimization";
  if (const Json::Value* value = checker.find(path); value != nullptr && value->isBool()) {
    zero.stage = value->asBool() ? 1 : 0;
  }
  checker.read(path + ".stage", zero.stage);
  zero.offload_param = read_offload(checker, "offload_param", "cpu_offload_param");
  zero.offload_optimizer = read_offload(checker, "offload_optimizer", "cpu_offload");
  require_stage(checker, zero.offload_param, "offload_param", zero.stage, 3);
  require_stage(checker, zero.offload_optimizer, "offload_optimizer", zero.stage, 1);
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

// Every pass has the same number of micro-batches.
void check_passes(Checker& checker, const TrainConfig& config) {
  constexpr const char* kPath = "sluice.micro_batches_per_pass";
  const std::optional<std::int64_t>& per_pass = config.sluice.micro_batches_per_pass;
  if (!per_pass || checker.wrong(kPath) || config.gradient_accumulation_steps < 1) return;
  if (config.gradient_accumulation_steps % *per_pass == 0) return;
  checker.add_problem(kPath, "must divide gradient_accumulation_steps, which is " +
                                 std::to_string(config.gradient_accumulation_steps) + ", found " +
                                 std::to_string(*per_pass));
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
  check_master(checker, config);
  check_passes(checker, config);
  check_directories(checker, config);
  checker.throw_if_wrong();
  for (std::string& note : checker.take_notes()) config.notes.push_back(std::move(note));
}

}  // namespace

TrainConfig parse_train_config(std::string_view text, const std::string& shown_path,
                               const LoadOptions& options) {
  if (options.world_size < 1) {
    throw InvalidArgument("a world size of " + std::to_string(options.world_size) +
                          "; expected at least 1 rank");
  }
  const JsonDocument document(text, shown_path);
  const Schema schema = train_schema();
  Checker checker(document, schema);
  TrainConfig config;
  config.path = shown_path;
  config.world_size = options.world_size;
  read_batch(checker, config);
  config.optimizer = read_optimizer(checker);
  config.scheduler = read_scheduler(checker);
  checker.read("gradient_clipping", config.gradient_clipping);
  read_precision(checker, config);
  checker.read("steps_per_print", config.steps_per_print);
  read_zero(checker, config.zero);
  read_aio(checker, config.aio);
  read_sluice(checker, config.sluice);
  check_master(checker, config);
  check_passes(checker, config);
  check_directories(checker, config);
  checker.throw_if_wrong();
  config.notes = checker.take_notes();
  return config;
}

TrainConfig load_train_config(const std::string& path, const LoadOptions& options) {
  TrainConfig config = parse_train_config(read_config_file(path), path, options);
  for (const std::string& tuned : options.tuned_paths)
    add_tuned(read_config_file(tuned), tuned, config);
  return config;
}

}  // namespace sluice::config
