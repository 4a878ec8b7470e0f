#pragma once
// TileScheduler: decides which tile of which unit is worked on next, on a thread of its own, the
// updater's. Several tiles are in flight: each is read, computed and written. A unit whose bytes
// are all at their homes needs no tile. All that is computed is split into pieces, which the
// executor's threads, the updater's among them, take as they come free: pieces of the earliest unit
// in forward order first. A unit that the device has all of is updated by the device alone. Where
// the plan has tiles on the device, it computes some: the last ones of a unit, while the CPU takes
// the first. The StateUpdater says what the work is, TilePlacement where the bytes are, and TileIo
// moves them. Not installed.

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
#include "sluice/base/piece_queue.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/buffer_ring.hpp"
#include "sluice/offload/tile_pipeline.hpp"
#include "update/device/device_updates.hpp"
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
  // decided tile by tile and piece by piece. Work of one unit begins when the work of earlier calls
  // on this unit has ended.
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
    // Tiles that nobody has taken: [next_tile, end_tile).
    std::size_t next_tile = 0;
    std::size_t end_tile = 0;
  };
  struct NextTile {
    TileRange range;
    std::shared_ptr<UnitCountdown> countdown;
  };
  // A tile whose states were read ahead, while it is computed.
  struct AheadTile {
    NextTile tile;
    std::shared_ptr<TileEnd> end;
    offload::TileLease lease;
    std::shared_ptr<StateChecksums> checksums;
    std::exception_ptr error;
  };
  // The weights of a unit on their way home.
  struct Sending {
    offload::Tickets tickets;
    std::shared_ptr<TileEnd> end;
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
  void run_waiting();
  // Does what needs no waiting: begins reads, computations and writes.
  void advance();
  std::optional<NextTile> take_tile(bool tile_is_free);
  // On the thread of the device's updates.
  std::optional<DeviceUpdates::Job> take_for_device(const DeviceUpdates::Free& free);
  bool work_waits() const;
  // Work came or ended.
  void note_change() SLUICE_REQUIRES(mutex_);
  std::uint64_t changes() const;
  void wait_for_change_after(std::uint64_t seen);
  void begin_tile(const NextTile& next);
  void begin_unit_at_home(const NextTile& next, const std::shared_ptr<TileEnd>& end);
  bool needs_no_tile(std::size_t unit, const TileWork& work) const;
  // Where the work on a unit that needs no tile is: on the elements of the work, or on all.
  TileRange whole_of(std::size_t unit, const TileWork& work) const;
  bool is_of_device_alone(std::size_t unit, const TileWork& work) const;
  void begin_send(const NextTile& next, const std::shared_ptr<TileEnd>& end);
  void end_front_send();
  void begin_tile_read_ahead(const NextTile& next, const std::shared_ptr<TileEnd>& end,
                             ReadAhead::Tile tile);
  void end_tile_read_ahead(AheadTile& tile);
  offload::TileJob writing_job(const NextTile& next, const std::shared_ptr<TileEnd>& end,
                               const std::shared_ptr<StateChecksums>& checksums);
  void write_next();
  void compute(const NextTile& next, Bytes tile, StateChecksums& checksums,
               std::function<void(std::exception_ptr)> ended);

  const UpdaterResources& resources_;
  const TilePlacement& placement_;
  const plan::Plan& plan_;
  PieceQueue pieces_;
  TileIo io_;
  std::optional<offload::BufferRing> ring_;  // none: every part is computed on at its home
  std::string why_unregistered_;
  std::optional<offload::TilePipeline> pipeline_;  // driven by the updater's thread
  std::optional<offload::BufferRing> ahead_ring_;
  std::optional<ReadAhead> ahead_;
  std::unique_ptr<DeviceUpdates> device_;  // null: the CPU computes all updates
  // Tiles that were read ahead and are computed. They are written when no update waits, because
  // nobody needs these tiles before. Confined to the updater's thread.
  std::deque<Unwritten> unwritten_;
  std::deque<Sending> sending_;  // confined to the updater's thread
  std::deque<Ticket> detached_;  // confined to the thread that calls begin()
  mutable Mutex mutex_;
  std::multimap<std::size_t, Waiting> waiting_ SLUICE_GUARDED_BY(mutex_);  // by unit
  std::uint64_t changes_ SLUICE_GUARDED_BY(mutex_) = 0;
  CondVar changed_;
  // By unit: the work that has begun and not ended.
  std::map<std::size_t, const UnitCountdown*> at_work_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<AheadTile>> computed_ahead_ SLUICE_GUARDED_BY(mutex_);
  std::optional<Worker> worker_;
};

}  // namespace sluice::train
