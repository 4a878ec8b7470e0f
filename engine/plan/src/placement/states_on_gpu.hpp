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

// How a plan is with that many of the first units on the GPU. too_few: host memory is short, and
// more units there would free some of it. too_many: the GPU is short, or something else would leave
// it.
enum class UnitsOnGpu { too_few, fit, too_many };
using TryUnitsOnGpu = std::function<UnitsOnGpu(std::size_t)>;

// Everything of the unit has its home on the device.
void keep_on_gpu(UnitPlacement& unit);

// The configuration leaves a share of the states to the GPU.
bool wants_states_on_gpu(const Plan& plan);
// The most units, up to the share, that fit; 0 where none do, and where the plan has no GPU with
// kernels for updates.
std::size_t most_on_gpu(const Plan& plan, const TryUnitsOnGpu& attempt);
// The units of a plan: when all had left the device that must, and in the end.
struct Spread {
  const std::vector<UnitPlacement>& leaving;
  const std::vector<UnitPlacement>& placed;
};
// Whether a plan with units on the GPU takes nothing from the others that they have without: no
// more leaves the device, is gathered anew or is computed again.
bool leaves_the_rest(const Spread& with, const Spread& without, std::size_t on_gpu);
// Whether the device's budget has room for the blocks that stay mapped between their uses.
bool has_kept_blocks(const Plan& plan, const StepModel& model, const Overlap& overlap);
// Adds a line of `choices`: how much is on the GPU, and why not more.
void note_states_on_gpu(Plan& plan, std::size_t on_gpu);
// Adds a line of `choices` where the cores update states that are on the GPU.
void note_updates_on_cores(Plan& plan);

}  // namespace sluice::plan
