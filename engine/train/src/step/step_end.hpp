#pragma once
// The end of a step: the result of backward, then skip or clip, and the start of the updates. Both
// loops, `sluice train` and a loop of the user's own, end their steps with these functions.
// Confined to the thread that trains.

#include <cstdint>
#include <string>

#include "sluice/config/train_config.hpp"
#include "step/gradients/gradient_flow.hpp"
#include "step/progress.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {

struct BackwardResult {
  double loss = 0;           // mean over the micro-batches of the step, and over the ranks
  double gradient_norm = 0;  // global, over ranks; unclipped, without the loss scale
  // Empty, "the loss", "the gradient of NAME" (the first found), or "a gradient of another rank".
  std::string non_finite;
  double forward_seconds = 0;  // see StepParts
  double backward_seconds = 0;
  bool updates_begun = false;  // each unit's update began when its gradient arrived
};

// Called after the backward of a step, when all gradients are at home. `loss_sum`: sum over the
// step's micro-batches on this rank, unscaled. Sums the squared norms over ranks, so every rank
// calls it, with one `of`, a part of the call's label.
BackwardResult result_of_backward(const RunResources& resources, const GradientFlow& gradients,
                                  double loss_sum, double loss_scale, const std::string& of = "");

// Whether `value` is finite on every rank; all of them ask. No reduction is in flight.
bool is_finite_on_all_ranks(const RunResources& resources, double value);

// Settings of the update of the step after `progress`. `ending`: no step follows that one.
UpdateSettings next_update(const RunResources& resources, const Progress& progress, bool ending);

struct StepEnd {
  bool updated = false;  // false: the step was skipped, or training must stop
  std::string why_stop;  // empty: training goes on. Else why it stops before this step's update
};

// Ends the step after `progress`.
// - The loss or a gradient is non-finite: drops the gradients, lowers a dynamic loss scale and logs
//   that the step is skipped; `progress` counts the step. If the configuration or the scale's
//   minimum forbids a skip, returns `why_stop` instead. Then weights and `progress` are unchanged,
//   and the caller throws the text.
// - Otherwise: computes the factor that clips and removes the loss scale, and begins the update of
//   every unit with it. Updates that began during backward have the factor of next_update().
//   `progress` counts the step and the update.
// Throws the errors of StateUpdater::begin_update(); then training cannot continue.
StepEnd end_step(const config::TrainConfig& config, const BackwardResult& backward,
                 const UpdateSettings& update, GradientFlow& gradients, Progress& progress);

}  // namespace sluice::train
