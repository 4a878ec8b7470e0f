#include "search/passes.hpp"

#include "sluice/offload/tier.hpp"

namespace sluice::plan {

using offload::Tier;

namespace {

// Weights off the device are copied to it twice a pass: 4 bytes per parameter, for 6 operations per
// parameter and token. A GPU that computes 10,000 operations per byte copied (500 TFLOP/s beside
// 50 GB/s) hides the copies from some 7,000 tokens per pass on.
constexpr std::size_t kTokensThatHideWeights = 16'384;

}  // namespace

bool passes_are_free(const Plan& plan) {
  const auto tokens_per_pass = plan.schedule.passes.each *
                               static_cast<std::size_t>(plan.config.micro_batch_size) *
                               static_cast<std::size_t>(plan.model.n_positions);
  const bool hides_weights = plan.passes() == 1 || tokens_per_pass >= kTokensThatHideWeights;
  const std::size_t last = plan.units.size() - 1;  // the head's backward follows at once
  for (std::size_t u = 0; u <= last; ++u) {
    const UnitPlacement& unit = plan.units[u];
    if (unit.weights != Tier::device && !hides_weights) return false;
    if (u < last && !unit.activations_saved) return false;
  }
  return true;
}

std::optional<PassSizes> asked_passes(const config::TrainConfig& config,
                                      const Preferences& preferences) {
  const auto& [each, last] = config.sluice.passes;
  if (!each) return preferences.passes;
  return PassSizes{static_cast<std::size_t>(*each), static_cast<std::size_t>(last.value_or(*each))};
}

}  // namespace sluice::plan
