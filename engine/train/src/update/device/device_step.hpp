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

// Master and moments of `range` at their home in host memory. Gradient and weight are addresses of
// the device, which the CPU must not read.
cpu_adam::Tile tile_at_home(const UpdaterResources& resources, const TilePlacement& placement,
                            const TileRange& range, const DeviceTile& tile);

}  // namespace sluice::train
