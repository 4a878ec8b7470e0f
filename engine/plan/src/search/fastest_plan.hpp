#pragma once
// The fastest of the plans that fit, on a machine whose rates are known. Not installed.

#include <functional>
#include <optional>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/rates.hpp"

namespace sluice::plan {

// The plan that has these preferences; nullopt when it does not fit.
using TryPreferences = std::function<std::optional<Plan>(const Preferences&)>;

// `usual`, or a plan of other preferences for which a step is predicted to be shorter, by more than
// what a prediction can tell apart; it says so in its choices. Where rates are not known: `usual`.
Plan fastest_plan(Plan usual, const FindRates& find_rates, const TryPreferences& try_preferences);

}  // namespace sluice::plan
