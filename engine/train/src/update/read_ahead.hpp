#pragma once
// ReadAhead: brings states of the units whose weights will be needed first to tiles of its own
// while the drive has nothing else to do: their gradients come last, and their updates are what
// computing waits for.

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

// Thread-safe where it says so, else confined to the updater's thread.
class ReadAhead {
 public:
  // Starts the reads of a tile's states.
  using BeginReads = std::function<offload::Tickets(const TileRange&, std::span<std::byte> tile)>;
  struct Tile {
    offload::TileLease lease;
    offload::Tickets reads;
  };

  // `ring`: used by nobody else. `counts`: elements of each unit's shard; 0 where nothing is read.
  ReadAhead(offload::BufferRing& ring, std::vector<std::uint64_t> counts, std::uint64_t tile_count,
            BeginReads begin_reads);

  // Every unit will be updated once more: the first ones are worth reading ahead. Thread-safe.
  void expect_updates();
  // A unit's states are about to change or be used, and have been. What is not updated is still
  // expected. Thread-safe.
  void begin_work(std::size_t unit, bool updates);
  void end_work(std::size_t unit);

  // Begins as many reads as there are free tiles.
  void start();
  // What was read of this tile; none when it was not.
  std::optional<Tile> take(const TileRange& range);
  // Drops what was read of a unit that is written anew.
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
  std::deque<std::size_t> expected_ SLUICE_GUARDED_BY(mutex_);
  std::vector<int> at_work_ SLUICE_GUARDED_BY(mutex_);  // by unit
};

}  // namespace sluice::train
