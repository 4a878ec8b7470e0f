#pragma once
// The learning rate of a step, and the betas where a schedule changes them too, by DeepSpeed's
// schedules and torch's. docs/config.md has the formulas and their oddities.
//
// Everything is a function of the step alone, so the number of updates is all that a checkpoint
// needs of a schedule.
// Thread-safe: free functions without state, except LearningRates.

#include <cstdint>
#include <optional>
#include <string>

#include "sluice/config/train_config.hpp"

namespace sluice::config {

// The learning rate of optimizer step `step`, which counts from 1. Skipped steps do not count:
// `step` is one more than the number of updates so far. `base_lr` is the optimizer's own lr. Throws
// InvalidArgument when step is below 1.
//
// Where torch computes a rate from the one before, so does this, from the first step on: torch's
// last bits depend on it. For many steps LearningRates is faster.
double learning_rate(const SchedulerConfig& scheduler, double base_lr, std::int64_t step);

// learning_rate() with the scheduler and the lr of a configuration.
inline double learning_rate(const TrainConfig& config, std::int64_t step) {
  return learning_rate(config.scheduler, config.optimizer.lr, step);
}

// A rate in the middle of a recursion of torch's.
struct KnownRate {
  std::int64_t epoch = -1;  // -1: none
  double lr = 0;
};

// learning_rate() of many steps. It remembers the last rate, so that the next step's takes one step
// of torch's recursions; the values are equal.
// Thread-compatible: callers synchronise.
class LearningRates {
 public:
  explicit LearningRates(const TrainConfig& config)
      : scheduler_(config.scheduler), base_lr_(config.optimizer.lr) {}

  double at(std::int64_t step);

 private:
  SchedulerConfig scheduler_;
  double base_lr_;
  KnownRate known_;
};

// A line on the steps of a run of `steps` that change no weight, because the schedule has ended at
// a rate of 0, with two ways out. Empty: there is none, or the schedule goes on in another way.
std::string steps_at_zero(const SchedulerConfig& scheduler, std::int64_t steps);

struct Betas {
  double beta1 = 0;
  double beta2 = 0;
};

// The betas of optimizer step `step`: those of `optimizer`, unless OneCycle changes them
// (cycle_momentum). beta1 may reach 1 by decay_mom_rate, see last_step_of_betas().
Betas betas_of_step(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                    std::int64_t step);
inline Betas betas_of_step(const TrainConfig& config, std::int64_t step) {
  return betas_of_step(config.scheduler, config.optimizer, step);
}

// The last step whose beta1 is below 1, as an update needs it. Empty: all of them.
std::optional<std::int64_t> last_step_of_betas(const SchedulerConfig& scheduler);

}  // namespace sluice::config
