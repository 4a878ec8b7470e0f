#pragma once
// Changes to a configuration that would make a plan fit, each tried by planning again.

#include <functional>
#include <string>
#include <vector>

#include "sluice/plan/make_plan.hpp"

namespace sluice::plan {

// A configuration and model, as a change leaves them.
struct Variant {
  config::TrainConfig config;
  config::ModelConfig model;
};
// Plans a variant without asking for further changes; nullopt when it does not fit.
using TryPlan = std::function<std::optional<Plan>(const Variant&)>;

// At most `limit` lines, smallest change first, each naming key and value.
std::vector<std::string> changes_that_fit(const Variant& refused, const Plan& shape,
                                          const MachineFacts& machine, const TryPlan& try_plan,
                                          std::size_t limit);

}  // namespace sluice::plan
