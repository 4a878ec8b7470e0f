#pragma once
// Tries at a placement: with less and less overlap and smaller rings, until one fits. Not
// installed.

#include "placement/placement.hpp"
#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "step/step_model.hpp"

namespace sluice::plan {

struct Attempt {
  Plan plan;
  Shortfall shortfall;
};

// Goes down the ladders of overlap and ring sizes until the plan fits; otherwise the least
// demanding attempt.
Attempt attempt(Plan plan, const StepModel& model, const Preferences& preferences);

// Fills in the least budgets, of those that attempt() comes to last; where the configuration leaves
// it open, with one pass, which needs no gradients on the device.
void find_least(Plan& plan, const StepModel& model);

}  // namespace sluice::plan
