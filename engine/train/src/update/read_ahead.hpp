#pragma once
// ReadAhead: reads states of the first units in forward order into tiles of its own while the drive
// is idle. Gradients of these units come last, and the next forward pass waits for their updates.
// Not installed.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/tile_range.hpp"

namespace sluice::train {

// Confined to the updater's thread, except for the functions marked thread-safe.
class ReadAhead {
 public:
  // Begins the reads of a tile's states.
  using BeginReads = std::function<offload::Tickets(const TileRange&, std::span<std::byte> tile)>;
  struct Tile {
    offload::TileLease lease;
    offload::Tickets reads;
  };

  // `ring`: shared with nobody; it outlives this. `counts`: elements of each unit's shard; 0 for a
  // unit whose updates read no states. `tile_count`: elements of a tile.
  ReadAhead(offload::BufferRing& ring, std::vector<std::uint64_t> counts, std::uint64_t tile_count,
            BeginReads begin_reads);

  // Announces one more update of every unit. Thread-safe.
  void expect_updates();
  // Work on a unit's states begins, and has ended. With `updates`, the announced update has come;
  // otherwise it stays expected. Thread-safe.
  void begin_work(std::size_t unit, bool updates);
  void end_work(std::size_t unit);

  // Begins as many reads as tiles are free. Does not block.
  void start();
  // Whether take() would return the tile.
  bool has(const TileRange& range) const;
  // The tile's memory with its reads, which may still be pending; none if the tile was not read
  // ahead.
  std::optional<Tile> take(const TileRange& range);
  // Drops the tiles of a unit whose states are overwritten.
  void forget(std::size_t unit);

 private:
  using Key = std::pair<std::size_t, std::uint64_t>;  // unit, begin
  std::vector<std::size_t> readable_units() const;

  offload::BufferRing& ring_;
  const std::vector<std::uint64_t> counts_;
  const std::uint64_t tile_count_;
  const BeginReads begin_reads_;
  std::map<Key, Tile> tiles_;
  mutable Mutex mutex_;
  std::deque<std::size_t> expected_ SLUICE_GUARDED_BY(mutex_);  // units, in forward order
  std::vector<int> at_work_ SLUICE_GUARDED_BY(mutex_);  // by unit: works begun and not ended
};

}  // namespace sluice::train
