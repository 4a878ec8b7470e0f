#pragma once
// Uses of spare host memory. Thread-safe: free functions without state.

#include <cstdint>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Caches what the configuration asks for of the states on NVMe, whatever the room. A part that is
// cached for all units needs no room in a tile, so this may take less memory than larger tiles.
// Does nothing where the preferences give the cache its memory last.
void cache_as_asked(Plan& plan, const Preferences& preferences);
void drop_cache(Plan& plan);

// Spends `room_bytes` of host memory on the cache of states, on slots for gradients that wait, on
// tiles for reading states ahead, on second states, and on copies of states for checkpoints. That
// is the default order; the preferences may change that of the first three.
// Needs plan.units and plan.rings. A cache that is filled already takes nothing of the room.
// Returns the bytes that are left.
std::uint64_t use_spare_memory(Plan& plan, const Preferences& preferences,
                               std::uint64_t room_bytes);

}  // namespace sluice::plan
