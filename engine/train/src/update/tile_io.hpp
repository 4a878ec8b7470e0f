#pragma once
// TileIo: reads a tile's bytes from their homes and writes them back: shards of the store, files,
// and copies of device memory. It counts the bytes that it moves. It decides neither when a tile is
// read nor what is computed. Not installed.

#include <span>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/device/device_states.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"
#include "update/tile_work.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// A part that the CPU uses at its home is not copied to the tile. Confined to the updater's thread,
// except counters().
class TileIo {
 public:
  using Bytes = std::span<std::byte>;

  // `resources` and `placement` outlive it.
  TileIo(const UpdaterResources& resources, const TilePlacement& placement);
  TileIo(const TileIo&) = delete;
  TileIo& operator=(const TileIo&) = delete;

  // In all calls, `tile` and the homes stay valid until the tickets have ended. Errors of a
  // transfer are those of its ticket. A call that throws has finished the transfers it began.

  // Begins to read the states and the gradient that `work` needs into the tile.
  offload::Tickets begin_reads(const TileRange& range, const TileWork& work, Bytes tile);
  // Begins to read the states that the next update of the tile needs. The bytes read from the store
  // are counted by begin_rest_of_reads(), because they belong to the step that uses them.
  offload::Tickets begin_read_ahead(const TileRange& range, Bytes tile);
  // Completes the reads of a tile whose states were read ahead: counts the states, and adds the
  // read of the gradient to `reads`.
  void begin_rest_of_reads(const TileRange& range, const TileWork& work, Bytes tile,
                           offload::Tickets& reads);
  // Begins to write the states and the weight that `work` changed. `checksums`: of the chunks of
  // each part that goes to the store.
  offload::Tickets begin_writes(const TileRange& range, const TileWork& work, Bytes tile,
                                const StateChecksums& checksums);

  // Bytes moved so far; no compute_seconds. Thread-safe.
  UpdateCounters counters() const;

 private:
  DeviceStates device_states(std::size_t unit) const;
  // Adds what a copy from the device moves.
  offload::Tickets begin_state_reads(const TileRange& range, TileWork::Parts parts, Bytes tile,
                                     UpdateCounters& moved) const;
  // Adds what comes from the store, or would without the cache.
  void add_state_reads(const TileRange& range, TileWork::Parts parts, UpdateCounters& moved) const;
  // The gradient has arrived: its compute work has ended.
  void add_gradient_read(const TileRange& range, Bytes tile, offload::Tickets& tickets);
  void add_weight_write(const TileRange& range, Bytes data, const offload::ComputePoint& after,
                        offload::Tickets& tickets, UpdateCounters& moved) const;
  void count(const UpdateCounters& moved);

  const UpdaterResources& resources_;
  const TilePlacement& placement_;
  const plan::Plan& plan_;
  const models::StateFormat format_;
  mutable Mutex mutex_;
  UpdateCounters counters_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::train
