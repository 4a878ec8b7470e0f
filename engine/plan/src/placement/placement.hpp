#pragma once
// Which tier each unit's bytes get: what the configuration asks for, moved down tier by tier where
// a budget is used up.

#include <cstdint>

#include "placement/preferences.hpp"
#include "placement/ring_sizes.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// What a placement is short of; all zero: it fits.
struct Shortfall {
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;
  bool no_directory = false;  // bytes would have to spill to NVMe, and no nvme_path is configured
  bool fits() const { return device_bytes == 0 && host_bytes == 0 && !no_directory; }
};

// Places everything for this overlap and these rings; fills in plan.units, overlap and rings (also
// of a placement that is short, for its table) and, when it fits, the choices.
Shortfall place(Plan& plan, const StepModel& model, const Overlap& overlap, const Rings& rings,
                const Preferences& preferences);

// What is left of each tier's need when everything has left it whose leaving makes it less.
LeastBytes least_bytes(Plan plan, const StepModel& model, const Overlap& overlap,
                       const Rings& rings);

// Everything on the device tier, whatever it takes.
void place_resident(Plan& plan);

// Memory that a unit's states take on their tier, or as a cache of what is on NVMe: what is neither
// in files only nor half of the weights.
std::uint64_t state_memory_bytes(const Plan& plan, std::size_t unit);

// Whether some bytes of the plan have their home in a file.
bool uses_files(const Plan& plan);
// The same without the optimizer states: bytes that move between a file and the device.
bool moves_files(const Plan& plan);

}  // namespace sluice::plan
