#pragma once
// Units whose states the GPU keeps, with their weights and gradients, and updates: what
// offload_optimizer's "ratio" leaves to it. The first units come first: their weights are needed
// first after an update, and without clipping the cores have the rest of backward for the last
// units' updates. Thread-safe: free functions without state.

#include <cstddef>
#include <functional>
#include <vector>

#include "placement/ring_sizes.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// Whether a plan with that many of the first units on the GPU is acceptable.
using UnitsOnGpu = std::function<bool(std::size_t)>;

// Everything of the unit has its home on the device.
void keep_on_gpu(UnitPlacement& unit);

// The configuration leaves a share of the states to the GPU.
bool wants_states_on_gpu(const Plan& plan);
// The most units, up to the share, for which `fits` holds; it holds for 0. 0 where the plan has no
// GPU, or does not know its activations.
std::size_t most_on_gpu(const Plan& plan, const UnitsOnGpu& fits);
// Whether the plan differs from the one without units on the GPU, whose units are `before`, in
// these only: nothing else has left the device, and no more is recomputed.
bool leaves_the_rest(const Plan& plan, const std::vector<UnitPlacement>& before,
                     std::size_t on_gpu);
// Whether the device's budget has room for the blocks that stay mapped between their uses.
bool has_kept_blocks(const Plan& plan, const StepModel& model, const Overlap& overlap);
// Adds a line of `choices`: how much is on the GPU, and why not more.
void note_states_on_gpu(Plan& plan, std::size_t on_gpu);

}  // namespace sluice::plan
