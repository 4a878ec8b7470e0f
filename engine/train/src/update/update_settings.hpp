#pragma once
// What the updates of a step are made with, from the configuration. Thread-safe: values and free
// functions without state.

#include <cstdint>

#include "sluice/config/train_config.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::train {

struct UpdateSettings {
  cpu_adam::OptimizerConfig optimizer;
  cpu_adam::Step step;
  bool commits = true;            // the step will be committed: the store needs all that it changes
  offload::ComputePoint after{};  // what the update's copies of device memory wait for
};

// Of the `update`-th update (from 1), at its learning rate of the schedule; stochastic rounding
// with the configuration's seed.
UpdateSettings settings_of_update(const config::TrainConfig& config, std::int64_t update);

// What gradients that are multiplied by `loss_scale`, and without it have the global norm `norm`,
// are multiplied with, so that they lose the one and the other is at most max_norm; 0: any.
float gradient_factor(double max_norm, double norm, double loss_scale);

}  // namespace sluice::train
