#pragma once
// The rows of the plan's table, and their sums by tier. Thread-safe: a free function without state.

#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// Sets plan.planned.rows and plan.planned.tiers from the placement.
void fill_rows(Plan& plan, const StepModel& model);

}  // namespace sluice::plan
