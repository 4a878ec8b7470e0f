#pragma once
// What host memory beyond a plan's needs is used for. Not installed.

#include <cstdint>

#include "placement/preferences.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Of `room_bytes`: the cache that is asked for, gradients that wait, tiles to read states ahead, in
// this order unless the preferences say otherwise. Sizes of rings are known.
void use_spare_memory(Plan& plan, const Preferences& preferences, std::uint64_t room_bytes);

}  // namespace sluice::plan
