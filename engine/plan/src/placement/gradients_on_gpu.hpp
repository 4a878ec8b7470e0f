#pragma once
// Gradients that wait on the GPU for their updates, beside states in host memory. Thread-safe: a
// free function without state.

#include <vector>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Gives gradients of whole units a home on the GPU, the first units first, as far as `room` of both
// budgets goes: an update copies them to its tile just before it computes. Only of units whose
// states are in host memory and whose weights are on the GPU, and whose updates begin as gradients
// arrive. Then a gradient crosses the link once, when it would anyway, and no copy of it lies in
// host memory. An update that waits for the norm would copy it while host memory bounds the
// updates, in place of during backward. Sets the rings to what is left for them, and says so in
// `choices`. Returns by unit whether its gradients stay.
std::vector<bool> keep_gradients_on_gpu(Plan& plan, const Preferences& preferences,
                                        const TierBytes& room);

}  // namespace sluice::plan
