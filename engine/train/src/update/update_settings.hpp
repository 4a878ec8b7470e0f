#pragma once
// UpdateSettings: the optimizer's parameters for the updates of one step, from the configuration.
// Thread-safe: values and free functions without state.

#include <cstdint>

#include "sluice/config/train_config.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::train {

struct UpdateSettings {
  cpu_adam::AdamConfig optimizer;
  cpu_adam::Step step;
  std::int64_t training_step = 0;  // the step that updates, for messages; skipped steps count
  bool commits = true;             // the step is committed: the store needs cached parts too
  offload::ComputePoint after{};   // copies of device memory begin after this point
};

// Settings of update number `update`, counted from 1: the schedule's learning rate, and stochastic
// rounding with the configuration's seed.
UpdateSettings settings_of_update(const config::TrainConfig& config, std::int64_t update);

// Factor for each gradient element: divides out the loss scale and clips. `norm`: global norm,
// unscaled. `max_norm` 0: no clipping.
float gradient_factor(double max_norm, double norm, double loss_scale);

}  // namespace sluice::train
