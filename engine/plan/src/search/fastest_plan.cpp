#include "search/fastest_plan.hpp"

#include <algorithm>

#include "sluice/base/text.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {

namespace {

// Below this gain, the choice would change with each measurement of the rates.
constexpr double kLeastGain = 0.01;

struct Candidate {
  Preferences preferences;
  Plan plan;
  Prediction prediction;
};

bool is_faster(const Prediction& a, const Prediction& b) {
  return a.step_seconds < (1 - kLeastGain) * b.step_seconds;
}

// Computing alone bounds a step from below, whatever the plan.
bool could_be_faster(const Prediction& prediction) {
  return prediction.compute_seconds < (1 - kLeastGain) * prediction.step_seconds;
}

std::string gain_text(const Candidate& best, double usual_seconds) {
  return "faster: " + text_of(best.preferences) + ": " +
         format_number("%.3f s a step predicted, instead of ", best.prediction.step_seconds) +
         format_number("%.3f s", usual_seconds);
}

}  // namespace

Plan fastest_plan(Plan usual, const FindRates& find_rates, const TryPreferences& try_preferences) {
  const std::optional<MachineRates> rates = find_rates ? find_rates(usual) : std::nullopt;
  if (!rates) return usual;
  const Prediction prediction = predict(usual, *rates);
  Candidate best{{}, std::move(usual), prediction};
  for (bool improved = true; improved && could_be_faster(best.prediction);) {
    improved = false;
    for (const Preferences& preferences : neighbours(best.preferences, best.plan)) {
      std::optional<Plan> plan = try_preferences(preferences);
      // Only candidates from which a run can resume alike: whether the swap directory alone is
      // enough must not depend on the rates.
      if (!plan || plan->states_all_on_nvme() != best.plan.states_all_on_nvme()) continue;
      const std::optional<MachineRates> its_rates = find_rates(*plan);
      if (!its_rates) continue;  // other drives, without measured rates
      const Prediction its_prediction = predict(*plan, *its_rates);
      if (!is_faster(its_prediction, best.prediction)) continue;
      best = {preferences, std::move(*plan), its_prediction};
      improved = true;
      break;
    }
  }
  if (best.preferences != Preferences())
    best.plan.choices.push_back(gain_text(best, prediction.step_seconds));
  return std::move(best.plan);
}

}  // namespace sluice::plan
