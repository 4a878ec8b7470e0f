#pragma once
// Suggestions: changes to a refused configuration that would make it fit, each tried by planning
// again. Thread-safe: free functions without state.

#include <functional>
#include <string>
#include <vector>

#include "sluice/plan/make_plan.hpp"

namespace sluice::plan {

// A configuration and a model, after a change.
struct Variant {
  config::TrainConfig config;
  config::ModelConfig model;
};
// Plans a variant, without suggestions. Returns nullopt when it does not fit.
using TryPlan = std::function<std::optional<Plan>(const Variant&)>;

// Returns a few suggestions, smallest change first. Each names key and value. `shape` is
// the plan of the refused variant.
std::vector<std::string> suggest_changes(const Variant& refused, const Plan& shape,
                                         const MachineFacts& machine, const TryPlan& try_plan);

}  // namespace sluice::plan
