#pragma once
// The learning rate of a step, by DeepSpeed's schedules. docs/config.md has the formulas and their
// oddities.
// Thread-safe: free functions without state.

#include <cstdint>

#include "sluice/config/train_config.hpp"

namespace sluice::config {

// The learning rate of optimizer step `step`, which counts from 1. Skipped steps do not count:
// `step` is one more than the number of updates so far. `base_lr` is the optimizer's own lr. Throws
// InvalidArgument when step is below 1.
double learning_rate(const SchedulerConfig& scheduler, double base_lr, std::int64_t step);

// learning_rate() with the scheduler and the lr of a configuration.
inline double learning_rate(const TrainConfig& config, std::int64_t step) {
  return learning_rate(config.scheduler, config.optimizer.lr, step);
}

}  // namespace sluice::config
