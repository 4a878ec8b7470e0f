#pragma once
// The tier of each unit's bytes: the configuration's tier, or a lower one where a budget is used
// up. Thread-safe: free functions without state.

#include <cstdint>

#include "placement/preferences.hpp"
#include "placement/ring_sizes.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// The missing memory of a placement. All zero: it fits.
struct Shortfall {
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
  bool no_directory = false;  // bytes would spill to NVMe, but no nvme_path is configured
  bool fits() const { return device_bytes == 0 && host_bytes == 0 && !no_directory; }
};

// Places everything for this overlap and these ring sizes. Sets plan.units, plan.rings and the
// overlap in plan.schedule, also when the placement is short: the refusal's table shows them. Sets
// plan.choices when it fits.
Shortfall place(Plan& plan, const StepModel& model, const Overlap& overlap, const RingSizes& rings,
                const Preferences& preferences);

// The least need of each tier: the need when every item has left that makes it smaller by leaving.
LeastBytes least_bytes(Plan plan, const StepModel& model, const Overlap& overlap,
                       const RingSizes& rings);

// Places everything on the device, without budgets.
void place_resident(Plan& plan);

}  // namespace sluice::plan
