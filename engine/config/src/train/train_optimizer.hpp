#pragma once
// The sections "optimizer" and "scheduler" of the training configuration.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Both add problems to the checker.
OptimizerConfig read_optimizer(Checker& checker);
SchedulerConfig read_scheduler(Checker& checker);

}  // namespace sluice::config
