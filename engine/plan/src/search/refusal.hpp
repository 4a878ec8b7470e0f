#pragma once
// Why a plan is refused, as text. Thread-safe: free functions without state.

#include <string>
#include <vector>

#include "placement/placement.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// One line for each tier or directory that the placement lacks; empty when it fits.
std::vector<std::string> shortfall_lines(const Plan& plan, const Shortfall& shortfall);

// One line for each choice of the plan that "strict" forbids. These choices downgrade a request of
// the configuration. Spilled gradients and inputs are no downgrades: the configuration does not
// place them. Raised limits are none either: they keep to the budgets, and DeepSpeed's defaults are
// below the engine's minimum.
std::vector<std::string> downgrades(const Plan& plan);

// The message of DoesNotFit: the plan's table, the reasons, and the changes that would fit.
std::string refusal(const Plan& plan, const std::vector<std::string>& reasons,
                    const std::vector<std::string>& changes);

}  // namespace sluice::plan
