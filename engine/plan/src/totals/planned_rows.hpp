#pragma once
// The rows of the plan's table, and the plan as text.

#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// Fills in rows and planned from the placement.
void fill_rows(Plan& plan, const StepModel& model);
// Fills in disks and the directories.
void fill_disks(Plan& plan, const MachineFacts& machine);

}  // namespace sluice::plan
