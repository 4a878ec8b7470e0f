#pragma once
// Which units stay on the device from the forward pass to the backward pass.

#include <cstdint>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// Uses room that is left on the device to keep units between forward and backward, those that are
// used again soonest first; small ones (stage3_param_persistence_threshold) before all others.
// Whether activations or weights come first the preferences say.
// `homes_bytes`: what has its home on the device. The plan fits its device budget before and after.
void keep_units(Plan& plan, const StepModel& model, const Overlap& overlap,
                const Preferences& preferences, std::uint64_t homes_bytes);

}  // namespace sluice::plan
