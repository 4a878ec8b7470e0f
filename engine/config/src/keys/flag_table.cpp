// The flags of the command line that give values of keys, and the sections with DeepSpeed's typed
// models.
#include <algorithm>

#include "sluice/config/key_table.hpp"

namespace sluice::config {

namespace {

constexpr FlagInfo kFlags[] = {
    {"--per-device-train-batch-size", "", "N", "train_micro_batch_size_per_gpu"},
    {"--train-batch-size", "", "N", "train_batch_size"},
    {"--gradient-accumulation-steps", "", "N", "gradient_accumulation_steps"},
    {"--optimizer", "", "NAME", "optimizer.type"},
    {"--learning-rate", "--lr", "LR", "optimizer.params.lr"},
    {"--weight-decay", "", "W", "optimizer.params.weight_decay"},
    {"--adam-beta1", "", "B", "optimizer.params.betas.0"},
    {"--adam-beta2", "", "B", "optimizer.params.betas.1"},
    {"--adam-epsilon", "", "E", "optimizer.params.eps"},
    {"--max-grad-norm", "", "X", "gradient_clipping"},
    {"--warmup-steps", "", "N", "scheduler.params.warmup_num_steps"},
    {"--bf16", "", "", "bf16.enabled"},
    {"--fp16", "", "", "fp16.enabled"},
};

// Sections that DeepSpeed reads through pydantic models, which drop "auto".
constexpr std::string_view kTypedSections[] = {
    "zero_optimization", "fp16",          "bf16",
    "comms_logger",      "tensorboard",   "wandb",
    "csv_monitor",       "comet",         "compile",
    "timers.throughput", "hybrid_engine", "tensor_parallel"};

}  // namespace

std::span<const FlagInfo> flag_table() {
  return kFlags;
}

std::string flags_of(std::string_view key) {
  std::string flags;
  for (const FlagInfo& info : kFlags) {
    if (!info.key.starts_with(key)) continue;
    if (info.key.size() > key.size() && info.key[key.size()] != '.') continue;
    flags += (flags.empty() ? "" : ", ") + std::string(info.flag) +
             (info.placeholder.empty() ? "" : " " + std::string(info.placeholder));
  }
  if (key == "scheduler.params.total_num_steps") return "--steps N";
  return flags.empty() ? "--set " + std::string(key) + "=VALUE" : flags;
}

bool is_typed_section(std::string_view path) {
  return std::any_of(std::begin(kTypedSections), std::end(kTypedSections),
                     [&](std::string_view section) {
                       return path.starts_with(section) &&
                              (path.size() == section.size() || path[section.size()] == '.');
                     });
}

std::string_view name_of_first_words(std::string_view name,
                                     std::span<const std::string_view> names) {
  const auto found = std::ranges::find_if(names, [&](std::string_view each) {
    return each.starts_with(name) && each.substr(name.size()).starts_with('_');
  });
  return found == names.end() ? std::string_view() : *found;
}

}  // namespace sluice::config
