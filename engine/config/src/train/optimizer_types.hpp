#pragma once
// OptimizerKind: the optimizers that train, with the parameters that each of them reads. Constant
// data.

#include <span>
#include <string>
#include <string_view>

#include "sluice/config/train_config.hpp"

namespace sluice::config {

struct OptimizerKind {
  std::string_view name;  // as messages show it; files may write it in any case
  OptimizerType type;
  std::span<const std::string_view> params;  // names in optimizer.params
  // Defaults that differ between the types.
  double lr;
  double eps;
};

std::span<const OptimizerKind> optimizer_kinds();
const OptimizerKind& kind_of(OptimizerType type);
// Null when no optimizer here has the name, in any case.
const OptimizerKind* find_kind(std::string_view name);
// Whether the optimizer reads optimizer.params.NAME.
bool has_param(const OptimizerKind& kind, std::string_view name);
// "Adam, AdamW and SGD": the optimizers with this parameter; empty: it is none of theirs.
std::string kinds_with(std::string_view name);

}  // namespace sluice::config
