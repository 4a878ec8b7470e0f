#pragma once
// UpdateTiles: walks units' optimizer states tile by tile on a thread of its own: reads what a
// piece of work needs to where it can be touched, runs its computation, writes back what it
// changed; several tiles in flight. StateUpdater says what the work is. Not installed, not for use
// elsewhere.

#include <cstdint>
#include <deque>
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
#include "sluice/plan/tile_layout.hpp"
#include "update/read_ahead.hpp"
#include "update/state_updater.hpp"
#include "update/tile_work.hpp"

namespace sluice::train {

// begin may be called by one thread while work runs; counters by any.
class UpdateTiles {
 public:
  // Takes the memory for states and tiles. Throws OutOfMemory.
  explicit UpdateTiles(const UpdaterResources& resources);
  ~UpdateTiles();  // waits for what was begun
  UpdateTiles(const UpdateTiles&) = delete;
  UpdateTiles& operator=(const UpdateTiles&) = delete;

  // Does `work` to every tile of a unit; the ticket ends when the last tile has. Of the units that
  // wait the first in forward order comes first, tile by tile, whose weights will be asked for
  // first; the work of one unit stays in order.
  Ticket begin(std::size_t unit, TileWork work);

  // Every unit will be updated once more. As far as the plan has tiles for that, states of the
  // first ones are read while nothing else is to be done.
  void expect_updates();

  const StateHome& home(std::size_t unit) const { return homes_[unit]; }
  // Elements of all units before this one.
  std::uint64_t first_element(std::size_t unit) const { return first_elements_[unit]; }
  const plan::Plan& plan() const { return plan_; }
  const UpdaterResources& resources() const { return resources_; }
  UpdateCounters counters() const;
  const std::string& why_unregistered() const { return why_unregistered_; }

 private:
  using Bytes = TileWork::Bytes;
  using States = TileWork::States;
  // Countdowns are shared by the unit's tiles.
  struct Waiting {
    std::shared_ptr<UnitCountdown> countdown;
    std::size_t next_tile = 0;
  };
  struct NextTile {
    TileRange range;
    std::shared_ptr<UnitCountdown> countdown;
  };

  void post(std::function<void()> task);
  std::optional<NextTile> take_tile();
  void run_waiting();
  std::uint64_t shard_count(std::size_t unit) const;
  std::size_t tiles_of(std::size_t unit) const;
  TileRange tile_range(std::size_t unit, std::size_t tile) const;
  StateHome make_home(std::size_t unit);
  States state_spans(const TileRange& range, Bytes tile) const;
  Bytes compute_span(const TileRange& range, Bytes tile, const offload::TieredBytes& home,
                     bool in_tile, std::uint64_t tile_offset) const;
  Bytes gradient_of(const TileRange& range, Bytes tile) const;
  Bytes weight_of(const TileRange& range, Bytes tile) const;
  void send_weight(const TileRange& range, Bytes data, const offload::ComputePoint& after,
                   offload::Tickets& tickets, UpdateCounters& moved) const;
  Ticket read_file(const offload::TieredBytes& home, const TileRange& range, Bytes data);
  offload::Tickets begin_state_reads(const TileRange& range, TileWork::Parts parts, Bytes tile,
                                     const offload::ComputePoint& after);
  void count_state_reads(const TileRange& range, TileWork::Parts parts);
  void add_gradient_read(const TileRange& range, Bytes tile, const offload::ComputePoint& after,
                         offload::Tickets& tickets);
  offload::Tickets begin_writes(const TileRange& range, const TileWork& work, Bytes tile);
  void compute(const TileRange& range, const TileWork& work, Bytes tile);
  void count(const UpdateCounters& more);
  void run_tile(const TileRange& range, const std::shared_ptr<UnitCountdown>& countdown);
  void run_tile_read_ahead(const TileRange& range, const TileWork& work,
                           const std::shared_ptr<TileEnd>& end, ReadAhead::Tile tile);
  offload::TileJob writing_job(const TileRange& range, const TileWork& work,
                               const std::shared_ptr<TileEnd>& end);
  void write_next();

  const UpdaterResources resources_;
  const TraceRow trace_row_;
  const plan::Plan& plan_;
  const models::StateFormat format_;
  const plan::TileLayout offsets_;
  std::vector<StateHome> homes_;
  std::vector<std::uint64_t> first_elements_;  // by unit
  std::optional<offload::BufferRing> ring_;
  std::string why_unregistered_;
  std::optional<offload::TilePipeline> pipeline_;  // driven by the worker's thread
  std::optional<offload::BufferRing> ahead_ring_;
  std::optional<ReadAhead> ahead_;
  // Computed in tiles that were read ahead, and to be written when nothing waits: nobody needs
  // those tiles before. The updater's thread's.
  struct Unwritten {
    offload::TileJob job;
    offload::TileLease lease;
  };
  std::deque<Unwritten> unwritten_;
  std::deque<Ticket> detached_;  // the caller's side
  mutable Mutex mutex_;
  std::multimap<std::size_t, Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);  // by unit
  UpdateCounters counters_ SLUICE_GUARDED_BY(mutex_);
  std::optional<Worker> worker_;
};

}  // namespace sluice::train
