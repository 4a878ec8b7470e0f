#pragma once
// Copies of optimizer states whose home is a device that is not host addressable: to the tile for
// an update, and back. These are all parts, or the upper half of a split master alone, which the
// weights are. Free functions without state. Not installed.

#include <cstdint>

#include "sluice/models/state_format.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/tiered_bytes.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/optimizer_tile.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"

namespace sluice::train {

// One unit's states, of which parts are on the device.
struct DeviceStates {
  offload::Device& device;
  const models::StateFormat& format;
  const StateHome& home;
  // Home of the unit's weights: half of a split master, unless they are on NVMe.
  const offload::TieredBytes& weights;
};

// One tile's copies. They wait for no compute work: it never writes states, and reads none but the
// weights of a split master.
struct TileCopy {
  TileRange range;
  StateSpans tile;  // the parts in the tile's memory
};

// Adds the copies of all parts that an update finds in the tile, and that are on the device, to
// `tickets`. Returns the number of bytes.
std::uint64_t begin_state_copies_out(const DeviceStates& states, const TileCopy& copy,
                                     offload::Tickets& tickets);
// The other direction, without the weights of a split master on the device: TileIo sends weights
// the same way for every format.
std::uint64_t begin_state_copies_in(const DeviceStates& states, const TileCopy& copy,
                                    offload::Tickets& tickets);

}  // namespace sluice::train
