#include "train/optimizer_types.hpp"

#include <algorithm>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

// Parameters of DeepSpeed's and torch's classes for each type. Keys that choose a kernel only, or
// that are refused, are among them.
constexpr std::string_view kAdamParams[] = {
    "lr",      "betas",       "eps",        "weight_decay",          "bias_correction",
    "amsgrad", "adam_w_mode", "torch_adam", "fp32_optimizer_states", "max_grad_norm",
    "foreach", "fused",       "capturable", "differentiable",        "maximize"};
constexpr std::string_view kAdagradParams[] = {"lr",
                                               "lr_decay",
                                               "weight_decay",
                                               "initial_accumulator_value",
                                               "eps",
                                               "maximize",
                                               "foreach",
                                               "fused",
                                               "differentiable",
                                               "fp32_optimizer_states",
                                               "max_grad_norm"};
constexpr std::string_view kLionParams[] = {"lr", "betas", "weight_decay", "fp32_optimizer_states",
                                            "max_grad_norm"};
constexpr std::string_view kSgdParams[] = {
    "lr",       "momentum", "dampening", "weight_decay",   "nesterov",
    "maximize", "foreach",  "fused",     "differentiable", "max_grad_norm"};

constexpr double kUsualRate = 1e-3;
constexpr OptimizerKind kKinds[] = {
    {"Adam", OptimizerType::adam, kAdamParams, kUsualRate, 1e-8},
    {"AdamW", OptimizerType::adamw, kAdamParams, kUsualRate, 1e-8},
    {"Adagrad", OptimizerType::adagrad, kAdagradParams, 1e-2, 1e-10},
    {"Lion", OptimizerType::lion, kLionParams, kUsualRate, 0},
    {"SGD", OptimizerType::sgd, kSgdParams, kUsualRate, 0}};

}  // namespace

std::span<const OptimizerKind> optimizer_kinds() {
  return kKinds;
}

const OptimizerKind& kind_of(OptimizerType type) {
  return *std::ranges::find(kKinds, type, &OptimizerKind::type);
}

std::string_view name_of(OptimizerType type) {
  return kind_of(type).name;
}

bool OptimizerConfig::reads(std::string_view param) const {
  return has_param(kind_of(type), param);
}

const OptimizerKind* find_kind(std::string_view name) {
  const auto found = std::ranges::find_if(
      kKinds, [&](const OptimizerKind& kind) { return equal_ignoring_case(kind.name, name); });
  return found == std::end(kKinds) ? nullptr : found;
}

bool has_param(const OptimizerKind& kind, std::string_view name) {
  return std::ranges::find(kind.params, name) != kind.params.end();
}

std::string kinds_with(std::string_view name) {
  std::vector<std::string_view> owners;
  for (const OptimizerKind& kind : kKinds) {
    if (has_param(kind, name)) owners.push_back(kind.name);
  }
  std::string text;
  for (std::size_t i = 0; i < owners.size(); ++i)
    text += std::string(i == 0                   ? ""
                        : i + 1 == owners.size() ? " and "
                                                 : ", ") +
            std::string(owners[i]);
  return text;
}

}  // namespace sluice::config
