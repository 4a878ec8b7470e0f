#pragma once
// A plan beside what the machine has: its memory, the GPU's, limits, disks. Not installed.

#include <string>
#include <vector>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Whether host buffers are pinned, and how many bytes that is; a problem when the limit is too low.
void choose_pinning(Plan& plan, const MachineFacts& machine, std::vector<std::string>& problems);

// Adds a problem for each thing that the machine has too little of.
void check_machine(const Plan& plan, const MachineFacts& machine,
                   std::vector<std::string>& problems);

}  // namespace sluice::plan
