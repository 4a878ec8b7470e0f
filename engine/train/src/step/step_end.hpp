#pragma once
// The end of a step, for every loop: the result of backward, then skip or clip, and the start of
// the updates. `sluice train` and a loop of the user's own call these functions and nothing else.
// Confined to the thread that trains.

#include <cstdint>
#include <string>

#include "sluice/config/train_config.hpp"
#include "step/gradient_flow.hpp"
#include "step/progress.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

struct BackwardResult {
  double loss = 0;             // mean over the micro-batches of the step
  double gradient_norm = 0;    // global, before clipping, without the loss scale
  std::string non_finite;      // empty, "the loss", or "the gradient of NAME" (the first found)
  bool updates_begun = false;  // each unit's update began when its gradient arrived
};

// After the backward of a step, when all gradients are at home. `loss_sum`: sum over the step's
// micro-batches, unscaled. Sums norms over ranks: every rank calls it.
BackwardResult result_of_backward(const RunResources& resources, const GradientFlow& gradients,
                                  double loss_sum, double loss_scale);

// Settings of the update of the step after `progress`. `ending`: no step follows that one.
UpdateSettings next_update(const RunResources& resources, const Progress& progress, bool ending);

struct StepEnd {
  bool updated = false;  // false: the step was skipped, or training must stop
  std::string why_stop;  // empty: training goes on. Else why it stops before this step's update
};

// Ends the step after `progress`. If the loss or a gradient is non-finite, drops the gradients,
// lowers a dynamic loss scale, and logs that the step is skipped. Otherwise clips (the factor of
// `update` is set here), and begins the update of every unit unless updates have begun. `progress`
// then counts the step. With `why_stop` the weights and `progress` are untouched: the caller
// commits what it has, then throws.
StepEnd end_step(const config::TrainConfig& config, const BackwardResult& backward,
                 const UpdateSettings& update, GradientFlow& gradients, Progress& progress);

}  // namespace sluice::train
