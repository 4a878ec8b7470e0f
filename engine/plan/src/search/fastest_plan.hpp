#pragma once
// The fastest plan that fits, on a machine with measured rates. Thread-safe: a free function
// without state.

#include <functional>
#include <optional>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"

namespace sluice::plan {

// Plans with these preferences. Returns nullopt when the plan does not fit.
using TryPreferences = std::function<std::optional<Plan>(const Preferences&)>;

// Returns a plan with other preferences if its predicted step is shorter than that of `usual` by
// more than the prediction's error; its choices then say so. Otherwise, and without rates, returns
// `usual`.
Plan fastest_plan(Plan usual, const FindRates& find_rates, const TryPreferences& try_preferences);

}  // namespace sluice::plan
