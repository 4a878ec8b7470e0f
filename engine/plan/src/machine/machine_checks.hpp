#pragma once
// Checks of a plan against the machine: memory, GPU memory, limits, disks. Thread-safe: free
// functions without state.

#include <string>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Chooses whether host buffers are pinned. Sets pinned_staging and pinned_bytes of plan.planned,
// and adds a choice. Adds a problem when the memory of the host device may not be locked.
void choose_pinning(Plan& plan, const MachineFacts& machine, std::vector<std::string>& problems);

// Adds a problem for each resource of which the machine has too little.
void check_machine(const Plan& plan, const MachineFacts& machine,
                   std::vector<std::string>& problems);

}  // namespace sluice::plan
