#pragma once
// Uses of spare host memory. Thread-safe: a free function without state.

#include <cstdint>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Spends `room_bytes` of host memory on the cache of states, on slots for gradients that wait, on
// tiles for reading states ahead, on second states, and on copies of states for checkpoints. That
// is the default order; the preferences may change that of the first three.
// Needs plan.units and plan.rings. Returns the bytes that are left.
std::uint64_t use_spare_memory(Plan& plan, const Preferences& preferences,
                               std::uint64_t room_bytes);

}  // namespace sluice::plan
