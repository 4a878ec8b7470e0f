#pragma once
// The optimizer's step on a tile in the device's memory. Thread-safe: free functions without state.
// Not installed.

#include <cstdint>

#include "sluice/cpu_adam/optimizer.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"
#include "update/tile_work.hpp"
#include "update/update_settings.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// Issues the update of `range` to `stream`, with resources.issue_step. `first_element`: as
// TilePlacement::first_element() of the unit.
void issue_update(const UpdaterResources& resources, const UpdateSettings& settings,
                  const TileRange& range, const DeviceTile& tile, std::uint64_t first_element,
                  void* stream);

// Throws check_finite()'s error if an element of `range` is non-finite at its home, where the
// update has put it. Copies parts of the states whose home is the device. Throws CudaError.
void check_finite_at_home(const UpdaterResources& resources, const TilePlacement& placement,
                          const UpdateSettings& settings, const TileRange& range,
                          const DeviceTile& tile);

}  // namespace sluice::train
