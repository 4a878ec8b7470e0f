#pragma once
// UpdateSettings: the optimizer's parameters for the updates of one step, from the configuration.
// Thread-safe: values and free functions without state.

#include <cstdint>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/hooked_loop.hpp"

namespace sluice::train {

struct UpdateSettings {
  // By parameter group of the plan. All have the moments that the states have; any other value may
  // change from step to step.
  std::vector<cpu_adam::OptimizerConfig> groups;
  cpu_adam::Step step;
  std::int64_t training_step = 0;  // the step that updates, for messages; skipped steps count
  bool commits = true;             // the step is committed: the store needs cached parts too
  offload::ComputePoint after{};   // copies of device memory begin after this point
  double learning_rate = 0;        // of the schedule, which the groups' rates follow
  double gradient_norm = 0;        // unclipped, for messages; 0: not known when the update begins

  // Whether updates with either give every element the same bits.
  bool updates_as(const UpdateSettings& other) const {
    return groups == other.groups && step == other.step;
  }
};

// The configuration's optimizer as the kernels take it.
cpu_adam::OptimizerConfig kernel_config(const config::OptimizerConfig& optimizer,
                                        double learning_rate);

// Settings of update number `update`, counted from 1, with the schedule's rate `rate` for it, and
// stochastic rounding with the configuration's seed. A group with a rate of its own has `rate`
// times its rate over that of the configuration.
UpdateSettings settings_of_update(const plan::Plan& plan, std::int64_t update, double rate);

// The values that a caller gives for its parameter groups, in place of the configuration's; an
// empty list changes nothing. Throws InvalidArgument for another number of groups.
void set_values(const std::vector<GroupValues>& groups, UpdateSettings& update);

// Factor for each gradient element: divides by `divisor`, the loss scale times the divisor of sums
// over ranks (TrainConfig::divisor_of_sum), and clips. `norm`: global norm of the gradients divided
// so. `max_norm` 0: no clipping.
float gradient_factor(double max_norm, double norm, double divisor);

}  // namespace sluice::train
