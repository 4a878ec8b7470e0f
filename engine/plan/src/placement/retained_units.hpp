#pragma once
// Units that stay on the device from the forward pass to the backward pass: their gathered weights,
// their activations. Thread-safe: a free function without state.

#include <cstdint>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// Uses spare device memory to retain units from forward to backward. Small units come first
// (stage3_param_persistence_threshold), then the units that backward uses soonest. The preferences
// say whether activations or weights come first.
// `homes_bytes`: bytes with their home on the device. The plan fits its device budget before and
// after.
void retain_units(Plan& plan, const StepModel& model, const Overlap& overlap,
                  const Preferences& preferences, std::uint64_t homes_bytes);

}  // namespace sluice::plan
