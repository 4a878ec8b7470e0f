#pragma once
// Tiles in the device's memory, for updates that the device computes ("gpu_updates"). Thread-safe:
// a free function without state.

#include <cstdint>

#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Adds the tiles to a plan whose units are placed, and a line of `choices` where the configuration
// asks for such updates. `room`: what the budgets of device and host have left. Returns the bytes
// that it takes of them.
TierBytes add_device_tiles(Plan& plan, TierBytes room);

}  // namespace sluice::plan
