#pragma once
// The section "scheduler" of the training configuration.

#include <string_view>

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// A scheduler of torch that is known and not supported.
bool is_other_scheduler(std::string_view type);

// Adds problems to the checker.
SchedulerConfig read_scheduler(Checker& checker, const OptimizerConfig& optimizer);

}  // namespace sluice::config
