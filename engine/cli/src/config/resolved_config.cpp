#include "config/resolved_config.hpp"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "sluice/base/bytes.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::cli {

namespace {

using Values = std::vector<std::pair<std::string, Json::Value>>;

Json::Value number(std::int64_t value) {
  return Json::Int64(value);
}
Json::Value count(std::uint64_t value) {
  return Json::UInt64(value);
}

template <typename T>
Json::Value or_auto(const std::optional<T>& value) {
  if (!value) return "auto";
  if constexpr (std::is_same_v<T, bool>) {
    return *value;
  } else {
    return static_cast<Json::Int64>(*value);
  }
}

std::string name_of(config::WarmupType type) {
  return type == config::WarmupType::log ? "log" : "linear";
}

Json::Value shown(double value) {
  return value;
}
Json::Value shown(bool value) {
  return value;
}
Json::Value shown(std::integral auto value) {
  return number(value);
}
Json::Value shown(config::WarmupType value) {
  return name_of(value);
}
Json::Value shown(double first, double second) {
  Json::Value pair(Json::arrayValue);
  pair.append(first);
  pair.append(second);
  return pair;
}
Json::Value shown(const std::vector<std::int64_t>& values) {
  Json::Value list(Json::arrayValue);
  for (const std::int64_t value : values) list.append(number(value));
  return list;
}

void add_scheduler(const config::TrainConfig& config, Values& values) {
  const auto add = [&](const auto& schedule) {
    using Schedule = std::remove_cvref_t<decltype(schedule)>;
    if constexpr (std::is_same_v<Schedule, std::monostate>) {
      values.emplace_back("scheduler.type", "none: the rate is constant");
    } else {
      values.emplace_back("scheduler.type", std::string(Schedule::kName));
      Schedule::visit(schedule, [&](std::string_view name, const auto& value) {
        const std::string key = "scheduler.params." + std::string(name);
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::optional<double>>) {
          values.emplace_back(key, value.value_or(config.optimizer.lr));
        } else {
          values.emplace_back(key, shown(value));
        }
      });
    }
  };
  std::visit(add, config.scheduler);
}

void add_optimizer(const config::TrainConfig& config, Values& values) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  values.emplace_back("optimizer.type", std::string(config::name_of(optimizer.type)));
  config::OptimizerConfig::visit(optimizer, [&](const std::string& name, auto... value) {
    if (optimizer.reads(name)) values.emplace_back("optimizer.params." + name, shown(value...));
  });
}

// The list as a file has it.
Json::Value groups_of(const std::vector<config::GroupConfig>& groups) {
  Json::Value list(Json::arrayValue);
  for (const config::GroupConfig& group : groups) {
    Json::Value entry(Json::objectValue);
    for (const std::string& pattern : group.match) entry["match"].append(pattern);
    if (group.lr) entry["lr"] = *group.lr;
    if (group.weight_decay) entry["weight_decay"] = *group.weight_decay;
    if (group.beta1 && group.beta2) entry["betas"] = shown(*group.beta1, *group.beta2);
    if (group.eps) entry["eps"] = *group.eps;
    if (group.momentum) entry["momentum"] = *group.momentum;
    list.append(entry);
  }
  return list;
}

void add_offload(const std::string& section, const config::OffloadConfig& offload, Values& values) {
  using Device = config::OffloadConfig::Device;
  const std::string path = "zero_optimization." + section + ".";
  values.emplace_back(path + "device", std::string(config::name_of(offload.device)));
  if (offload.device == Device::none) return;
  if (offload.device == Device::nvme) {
    Json::Value paths(Json::arrayValue);
    for (const std::string& directory : offload.directories) paths.append(directory);
    values.emplace_back(path + "nvme_path", paths.size() == 1 ? paths[0U] : paths);
  }
  values.emplace_back(path + "pin_memory", or_auto(offload.pin_memory));
  values.emplace_back(path + "buffer_count", or_auto(offload.buffer_count));
  if (section == "offload_param")
    values.emplace_back(path + "buffer_size", or_auto(offload.buffer_size));
  if (section == "offload_optimizer") values.emplace_back(path + "ratio", offload.ratio);
}

void add_zero(const config::TrainConfig& config, Values& values) {
  const config::ZeroConfig& zero = config.zero;
  values.emplace_back("zero_optimization.stage", zero.stage);
  add_offload("offload_param", zero.offload_param, values);
  add_offload("offload_optimizer", zero.offload_optimizer, values);
  if (zero.stage < config::kStageOfShardedWeights) return;
  const std::string path = "zero_optimization.";
  values.emplace_back(path + "sub_group_size", count(zero.sub_group_size));
  values.emplace_back(path + "stage3_prefetch_bucket_size", count(zero.prefetch_bucket_size));
  values.emplace_back(path + "stage3_max_live_parameters", count(zero.max_live_parameters));
  values.emplace_back(path + "stage3_max_reuse_distance", count(zero.max_reuse_distance));
  values.emplace_back(path + "stage3_param_persistence_threshold",
                      count(zero.param_persistence_threshold));
  values.emplace_back(path + "stage3_model_persistence_threshold",
                      count(zero.model_persistence_threshold));
}

void add_precision(const config::TrainConfig& config, Values& values) {
  values.emplace_back("bf16.enabled", config.bf16);
  const config::Fp16Config& fp16 = config.fp16;
  values.emplace_back("fp16.enabled", fp16.enabled);
  values.emplace_back("data_types.grad_accum_dtype", std::string(name_of(config.gradient_dtype())));
  if (!fp16.enabled) return;
  values.emplace_back("fp16.loss_scale", fp16.loss_scale);
  if (!fp16.is_dynamic()) return;
  config::Fp16Config::visit_dynamic(fp16, [&](const std::string& name, auto value) {
    values.emplace_back("fp16." + name, shown(value));
  });
}

void add_monitors(const config::TrainConfig& config, Values& values) {
  const config::MonitorsConfig& monitors = config.monitors;
  const auto add = [&](const std::string& section, const config::MonitorFiles& files) {
    values.emplace_back(section + ".enabled", files.enabled);
    if (!files.enabled) return;
    values.emplace_back(section + ".output_path", files.output_path);
    values.emplace_back(section + ".job_name", files.job_name);
  };
  add("tensorboard", monitors.tensorboard);
  add("csv_monitor", monitors.csv);
  values.emplace_back("wall_clock_breakdown", monitors.wall_clock_breakdown);
  values.emplace_back("memory_breakdown", monitors.memory_breakdown);
  values.emplace_back("timers.throughput.enabled", monitors.throughput);
  const config::FlopsProfilerConfig& profiler = monitors.flops_profiler;
  values.emplace_back("flops_profiler.enabled", profiler.enabled);
  if (!profiler.enabled) return;
  values.emplace_back("flops_profiler.profile_step", number(profiler.profile_step));
  values.emplace_back("flops_profiler.recompute_fwd_factor", profiler.recompute_fwd_factor);
  values.emplace_back("flops_profiler.detailed", profiler.detailed);
  values.emplace_back("flops_profiler.output_file", profiler.output_file.empty()
                                                        ? Json::Value()
                                                        : Json::Value(profiler.output_file));
}

void add_ranks(const config::TrainConfig& config, Values& values) {
  const config::ReductionConfig& reduction = config.zero.reduction;
  values.emplace_back("prescale_gradients", reduction.prescales);
  values.emplace_back("gradient_predivide_factor", reduction.predivide_factor);
  values.emplace_back("gradient_allreduce_op", reduction.takes_sum ? "sum" : "mean");
  values.emplace_back("communication_data_type",
                      reduction.wire_dtype
                          ? Json::Value(std::string(name_of(*reduction.wire_dtype)))
                          : Json::Value());
  const config::CommsLoggerConfig& logger = config.monitors.comms_logger;
  values.emplace_back("comms_logger.enabled", logger.enabled);
  if (!logger.enabled) return;
  values.emplace_back("comms_logger.verbose", logger.verbose);
  values.emplace_back("comms_logger.prof_all", logger.prof_all);
  values.emplace_back("comms_logger.debug", logger.debug);
  Json::Value operations(Json::arrayValue);
  for (const std::string& operation : logger.prof_ops) operations.append(operation);
  values.emplace_back("comms_logger.prof_ops", operations);
}

void add_aio(const config::TrainConfig& config, Values& values) {
  values.emplace_back("aio.block_size", count(config.aio.block_size));
  values.emplace_back("aio.queue_depth", config.aio.queue_depth);
  values.emplace_back("aio.intra_op_parallelism", config.aio.intra_op_parallelism);
}

Json::Value budget(const config::ByteBudget& budget) {
  switch (budget.kind) {
    case config::ByteBudget::Kind::automatic:
      return "auto";
    case config::ByteBudget::Kind::bytes:
      return count(budget.value);
    case config::ByteBudget::Kind::percent:
      return std::to_string(budget.value) + "%";
  }
  return "auto";
}

template <typename Format>
std::string or_auto_name(const std::optional<Format>& format) {
  return format ? std::string(config::name_of(*format)) : "auto";
}

void add_sluice(const config::TrainConfig& config, Values& values) {
  const config::SluiceConfig& sluice = config.sluice;
  values.emplace_back("sluice.device", config::name_of(sluice.device));
  values.emplace_back("sluice.deterministic", sluice.gpu_math.deterministic);
  values.emplace_back("sluice.tf32", sluice.gpu_math.tf32);
  values.emplace_back("sluice.device_bytes", budget(sluice.device_bytes));
  values.emplace_back("sluice.host_bytes", budget(sluice.host_bytes));
  values.emplace_back("sluice.durability", std::string(name_of(sluice.durability)));
  values.emplace_back("sluice.commit_every", number(sluice.commit_every));
  if (!sluice.checkpoints.directory.empty()) {
    values.emplace_back("sluice.checkpoint_dir", sluice.checkpoints.directory);
    values.emplace_back("sluice.checkpoint_every", number(sluice.checkpoints.every));
    values.emplace_back("sluice.keep", number(sluice.checkpoints.keep));
    values.emplace_back("sluice.checkpoint_bytes", budget(sluice.checkpoints.copy_bytes));
  }
  values.emplace_back("sluice.strict", sluice.strict);
  values.emplace_back("sluice.approximate", sluice.approximate);
  values.emplace_back("sluice.non_finite",
                      sluice.non_finite == config::NonFinite::stop ? "stop" : "skip");
  values.emplace_back("sluice.activations", std::string(config::name_of(sluice.activations)));
  if (!config.groups.entries.empty())
    values.emplace_back("sluice.groups", groups_of(config.groups.entries));
  values.emplace_back("sluice.no_decay",
                      config.groups.no_decay_of_biases_and_norms ? "biases_and_norms" : "none");
  values.emplace_back("sluice.master", or_auto_name(sluice.master));
  values.emplace_back("sluice.moments", or_auto_name(sluice.moments));
  values.emplace_back("sluice.cache_bytes", budget(sluice.cache_bytes));
  values.emplace_back("sluice.speculative_bytes", budget(sluice.updates.speculative_bytes));
  values.emplace_back("sluice.gpu_updates", sluice.updates.on_gpu);
  values.emplace_back("sluice.optimizer_in_backward", sluice.updates.in_backward);
  values.emplace_back("sluice.overlap", sluice.overlap);
  values.emplace_back("sluice.micro_batches_per_pass", or_auto(sluice.passes.each));
  values.emplace_back("sluice.last_pass_micro_batches", or_auto(sluice.passes.last));
  values.emplace_back("sluice.threads.compute", or_auto(sluice.threads.compute));
  values.emplace_back("sluice.threads.optimizer", or_auto(sluice.threads.optimizer));
  values.emplace_back("sluice.threads.io", or_auto(sluice.threads.io));
  values.emplace_back("sluice.io.backend", sluice.io.backend);
  values.emplace_back("sluice.io.reads_per_write", number(sluice.io.reads_per_write));
  values.emplace_back("sluice.io.submit_polling", sluice.io.submit_polling);
  if (!sluice.io.drive_weights.empty()) {
    Json::Value weights(Json::arrayValue);
    for (const unsigned weight : sluice.io.drive_weights) weights.append(weight);
    values.emplace_back("sluice.io.drive_weights", weights);
  }
  if (sluice.io.drive_endurance_bytes > 0)
    values.emplace_back("sluice.drive_endurance", count(sluice.io.drive_endurance_bytes));
  values.emplace_back("sluice.seed", count(sluice.seed));
}

}  // namespace

std::vector<std::pair<std::string, Json::Value>> resolved_values(
    const config::TrainConfig& config) {
  Values values;
  values.emplace_back("train_batch_size", number(config.train_batch_size));
  values.emplace_back("train_micro_batch_size_per_gpu", number(config.micro_batch_size));
  values.emplace_back("gradient_accumulation_steps", number(config.gradient_accumulation_steps));
  add_optimizer(config, values);
  add_scheduler(config, values);
  values.emplace_back("gradient_clipping", config.gradient_clipping);
  add_precision(config, values);
  values.emplace_back("steps_per_print", config.monitors.steps_per_print
                                             ? number(*config.monitors.steps_per_print)
                                             : Json::Value());
  add_monitors(config, values);
  values.emplace_back("dataloader_drop_last", config.drop_last);
  add_zero(config, values);
  add_ranks(config, values);
  add_aio(config, values);
  add_sluice(config, values);
  return values;
}

namespace {

// The Trainer's default for an "auto" of this key is not ours.
bool has_value_for_auto(std::string_view key) {
  const auto table = config::key_table();
  return std::any_of(table.begin(), table.end(), [&](const config::KeyInfo& info) {
    return info.path == key && !info.auto_json.empty() && info.auto_json != "default" &&
           info.auto_json != "null" && info.auto_json != "open";
  });
}

}  // namespace

std::string origin_of(const config::TrainConfig& config, const std::string& key,
                      const Json::Value& value) {
  const auto find = [&](const std::string& path) -> std::string {
    const auto found = config.origins.find(path);
    return found == config.origins.end() || found->second == "auto" ? "" : found->second;
  };
  if (std::string own = find(key); !own.empty()) return own;
  // Keys that give the value of another.
  const std::pair<const char*, const char*> givers[] = {
      {"zero_optimization.stage", "zero_optimization"},
      {"zero_optimization.offload_param.device", "zero_optimization.cpu_offload_param"},
      {"zero_optimization.offload_optimizer.device", "zero_optimization.cpu_offload"},
      {"sluice.activations", "activation_checkpointing.cpu_checkpointing"},
      {"optimizer.params.weight_decay", "optimizer.params.torch_adam"}};
  for (const auto& [given, giver] : givers) {
    std::string origin = given == key ? find(giver) : "";
    if (!origin.empty()) return origin;
  }
  for (const char* derived :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
        "scheduler.params.warmup_max_lr", "scheduler.params.cycle_second_step_size",
        "scheduler.params.cycle_second_stair_count"}) {
    if (key == derived) return "derived";
  }
  const auto own = config.origins.find(key);
  if (own != config.origins.end() && own->second == "auto" && has_value_for_auto(key))
    return "auto";
  return value.isString() && value.asString() == "auto" ? "planned" : "default";
}

}  // namespace sluice::cli
