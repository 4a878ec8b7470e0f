#pragma once
// TileScheduler: decides which tile of which unit is worked on next, on a thread of its own.
// Several tiles are in flight: each is read, computed and written. The StateUpdater says what the
// work is, TilePlacement where the bytes are, and TileIo moves them. Not installed.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "sluice/base/mutex.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/read_ahead.hpp"
#include "update/tile_io.hpp"
#include "update/tile_placement.hpp"
#include "update/tile_range.hpp"
#include "update/tile_work.hpp"
#include "update/updater_resources.hpp"

namespace sluice::train {

// begin() and expect_updates() are called by one thread while work runs; counters() by any thread.
class TileScheduler {
 public:
  // Allocates the tiles. Both arguments outlive the scheduler. Throws OutOfMemory.
  TileScheduler(const UpdaterResources& resources, const TilePlacement& placement);
  ~TileScheduler();  // blocks until the work that was begun has ended
  TileScheduler(const TileScheduler&) = delete;
  TileScheduler& operator=(const TileScheduler&) = delete;

  // Does `work` to every tile of a unit; the ticket ends with the last tile. Among waiting units,
  // the earliest in forward order comes first, because its weights are needed first. The order is
  // decided tile by tile. Work of one unit runs in the order of the calls.
  Ticket begin(std::size_t unit, TileWork work);

  // Announces one more update of every unit. While idle, the scheduler reads states of the first
  // units ahead, as far as the plan has tiles for that.
  void expect_updates();

  UpdateCounters counters() const;
  // Empty, or why the tiles are not registered with the I/O engine.
  const std::string& why_unregistered() const { return why_unregistered_; }

 private:
  using Bytes = TileWork::Bytes;
  struct Waiting {
    std::shared_ptr<UnitCountdown> countdown;  // shared by the unit's tiles
    std::size_t next_tile = 0;
  };
  struct NextTile {
    TileRange range;
    std::shared_ptr<UnitCountdown> countdown;
  };
  // A computed tile whose writes have not begun.
  struct Unwritten {
    offload::TileJob job;
    offload::TileLease lease;
  };

  void make_tiles();
  void make_read_ahead();
  void register_tiles(offload::BufferRing& ring);
  void post(std::function<void()> task);

  // On the updater's thread.
  std::optional<NextTile> take_tile();
  void run_waiting();
  void run_tile(const TileRange& range, const std::shared_ptr<UnitCountdown>& countdown);
  void run_tile_read_ahead(const TileRange& range, const TileWork& work,
                           const std::shared_ptr<TileEnd>& end, ReadAhead::Tile tile);
  offload::TileJob writing_job(const TileRange& range, const TileWork& work,
                               const std::shared_ptr<TileEnd>& end);
  void write_next();
  void compute(const TileRange& range, const TileWork& work, Bytes tile);

  const UpdaterResources& resources_;
  const TilePlacement& placement_;
  const TraceRow trace_row_;
  const plan::Plan& plan_;
  TileIo io_;
  std::optional<offload::BufferRing> ring_;  // none: every part is computed on at its home
  std::string why_unregistered_;
  std::optional<offload::TilePipeline> pipeline_;  // driven by the updater's thread
  std::optional<offload::BufferRing> ahead_ring_;
  std::optional<ReadAhead> ahead_;
  // Tiles that were read ahead and are computed. They are written when no update waits, because
  // nobody needs these tiles before. Confined to the updater's thread.
  std::deque<Unwritten> unwritten_;
  std::deque<Ticket> detached_;  // confined to the thread that calls begin()
  mutable Mutex mutex_;
  std::multimap<std::size_t, Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);  // by unit
  double compute_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::optional<Worker> worker_;
};

}  // namespace sluice::train
