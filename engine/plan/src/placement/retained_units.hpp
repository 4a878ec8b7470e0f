#pragma once
// Bytes of units that stay on the device: gathered weights and activations from the forward pass to
// the backward pass, sums of gradients from one micro-batch to the next. Thread-safe: free
// functions without state.

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

// UnitPlacement::sums_on_device for as many units as `room_bytes` of a GPU hold, the last ones
// first, in a loop of the user's own with one rank, if several backwards of a step add to the
// unit's gradient: of several micro-batches, or of several calls, as with tied weights. Where an
// eighth of the device's budget has room for all, all have it, because nobody has counted the
// calls. Where activations are unknown, this eighth is the most.
void keep_gradient_sums(Plan& plan, std::uint64_t room_bytes);

}  // namespace sluice::plan
