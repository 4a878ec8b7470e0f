#pragma once
// Optimizer states whose home is a device that the host does not address: they come to the tile for
// an update and go back. Not installed, not for use elsewhere.

#include <cstdint>

#include "sluice/models/state_format.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/tiered_bytes.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/optimizer_tile.hpp"
#include "update/tile_work.hpp"

namespace sluice::train {

// Adds the copies of one tile to `tickets`; returns their bytes. `weights` is the home of the
// unit's weights, half of a split master.
std::uint64_t begin_far_reads(offload::Device& device, const models::StateFormat& format,
                              const StateHome& home, const offload::TieredBytes& weights,
                              const TileRange& range, const StateSpans& tile,
                              const offload::ComputePoint& after, offload::Tickets& tickets);
// The other way. Without the weights of a split master: they are sent as those of any update are.
std::uint64_t begin_far_writes(offload::Device& device, const models::StateFormat& format,
                               const StateHome& home, const TileRange& range,
                               const StateSpans& tile, const offload::ComputePoint& after,
                               offload::Tickets& tickets);

}  // namespace sluice::train
