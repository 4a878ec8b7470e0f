#pragma once
// The directories of a plan, and the disk space that each needs. Thread-safe: free functions
// without state.

#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Sets plan.directories from the placement and the rows (fill_rows() first).
void fill_disks(Plan& plan, const MachineFacts& machine);

}  // namespace sluice::plan
