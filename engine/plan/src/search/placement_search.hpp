#pragma once
// Search for a placement that fits: less and less overlap, smaller and smaller rings. Thread-safe:
// free functions without state.

#include "placement/placement.hpp"
#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

// A placed plan, with its shortfall.
struct PlacedPlan {
  Plan plan;
  Shortfall shortfall;
};

// Returns the first placement that fits, from the most overlap and the largest rings down. Where
// none fits, returns the one with the least overlap that is short by the least.
PlacedPlan find_placement(Plan plan, const StepModel& model, const Preferences& preferences);

// Sets plan.least: the budgets that the last placement of find_placement() needs. Where the
// configuration leaves the number of passes open, assumes one pass, which needs no gradients on the
// device.
void find_least(Plan& plan, const StepModel& model);

}  // namespace sluice::plan
