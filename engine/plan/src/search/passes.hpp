#pragma once
// The passes of a step: how many micro-batches go forward and backward together. Thread-safe:
// values and free functions without state.

#include <optional>

#include "placement/preferences.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// More passes cost this plan no time: nothing is recomputed, and each pass hides the copies of its
// weights.
bool passes_are_free(const Plan& plan);

// The passes that the configuration, or else the search, asks for; empty: they are open.
std::optional<PassSizes> asked_passes(const config::TrainConfig& config,
                                      const Preferences& preferences);

}  // namespace sluice::plan
