#pragma once
// UpdateTiles: walks units' optimizer states tile by tile on a thread of its own: reads what a
// piece of work needs to where it can be touched, runs its computation, writes back what it
// changed; several tiles in flight. StateUpdater says what the work is. Not installed, not for use
// elsewhere.

#include <array>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "state_updater.hpp"

namespace sluice::train {

inline constexpr std::size_t kStates = models::kStateCount;

// Where one unit's states are: a shard each in a store, or memory.
struct StateHome {
  bool in_store = false;
  std::array<std::size_t, kStates> shards{};  // indices in the store
  std::array<offload::TieredBytes, kStates> memory;
};

// One tile's place in its unit.
struct TileRange {
  std::size_t unit = 0;
  std::uint64_t begin = 0;  // element of the shard
  std::uint64_t count = 0;
};

// What is done to each tile of a unit. Bytes that are not in memory come from and go to the tile's
// buffer.
struct TileWork {
  using Bytes = std::span<std::byte>;

  const char* what = "";  // as the trace calls it
  bool read_states = false;
  bool read_gradient = false;
  bool write_states = false;
  bool write_weight = false;
  // Runs on the updater's thread with the states (master, moment1, moment2), gradient and weight of
  // the tile.
  std::function<void(const TileRange&, const std::array<Bytes, kStates>& states, Bytes gradient,
                     Bytes weight)>
      compute;
  // After all tiles of the unit have ended well.
  std::function<void()> finish;
  // Held until all have ended.
  offload::TileLease gradients;
};

// begin may be called by one thread while work runs; counters by any.
class UpdateTiles {
 public:
  // Takes the memory for states and tiles. Throws OutOfMemory.
  explicit UpdateTiles(const UpdaterResources& resources);
  ~UpdateTiles();  // waits for what was begun
  UpdateTiles(const UpdateTiles&) = delete;
  UpdateTiles& operator=(const UpdateTiles&) = delete;

  // Does `work` to every tile of a unit; the ticket ends when the last tile has. Of the units that
  // wait the first in forward order comes first, whose weights will be asked for first; the work of
  // one unit stays in order.
  Ticket begin(std::size_t unit, TileWork work);

  const StateHome& home(std::size_t unit) const { return homes_[unit]; }
  const plan::Plan& plan() const { return plan_; }
  const UpdaterResources& resources() const { return resources_; }
  UpdateCounters counters() const;
  const std::string& why_unregistered() const { return why_unregistered_; }

 private:
  using Bytes = TileWork::Bytes;
  class Countdown;
  struct Waiting {
    TileWork work;
    std::shared_ptr<Countdown> countdown;  // shared by the unit's tiles
  };

  void run_first();
  std::uint64_t shard_count(std::size_t unit) const;
  std::size_t tiles_of(std::size_t unit) const;
  StateHome make_home(std::size_t unit);
  bool weight_in_tile(std::size_t unit) const;
  std::array<Bytes, kStates> state_spans(const TileRange& range, Bytes tile) const;
  Bytes compute_span(const TileRange& range, Bytes tile, const offload::TieredBytes& home,
                     bool in_tile, std::uint64_t tile_offset) const;
  Bytes gradient_of(const TileRange& range, Bytes tile) const;
  Bytes weight_of(const TileRange& range, Bytes tile) const;
  Ticket read_file(const offload::TieredBytes& home, const TileRange& range, Bytes data);
  offload::Tickets begin_reads(const TileRange& range, const TileWork& work, Bytes tile);
  offload::Tickets begin_writes(const TileRange& range, const TileWork& work, Bytes tile);
  void compute(const TileRange& range, const TileWork& work, Bytes tile);
  void run_tile(const TileRange& range, const std::shared_ptr<const TileWork>& work,
                const std::shared_ptr<Countdown>& countdown);

  const UpdaterResources resources_;
  const TraceRow trace_row_;
  const plan::Plan& plan_;
  const plan::UpdateTile tile_;
  const plan::UpdateTileOffsets offsets_;
  std::vector<StateHome> homes_;
  std::optional<offload::BufferRing> ring_;
  std::string why_unregistered_;
  std::optional<offload::TilePipeline> pipeline_;  // driven by the worker's thread
  std::deque<Ticket> detached_;                    // the caller's side
  mutable Mutex mutex_;
  std::multimap<std::size_t, Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);  // by unit
  UpdateCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::optional<Worker> worker_;
};

}  // namespace sluice::train
