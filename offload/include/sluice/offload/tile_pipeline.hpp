#pragma once
// TilePipeline: reads, computes and writes tiles, with several tiles in flight. While one tile is
// computed, the drive reads the next tiles and writes the previous ones. The pipeline knows neither
// files nor optimizers: its three stages are callables.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/offload/buffer_ring.hpp"

namespace sluice::offload {

using Tickets = std::vector<Ticket>;

// One tile's work. Any stage may be empty.
struct TileJob {
  // Begins filling the tile; called as soon as a tile is free.
  std::function<Tickets(std::span<std::byte> tile)> begin_read;
  // Runs after the reads have finished, in the order of push(), on the thread that drives the
  // pipeline.
  std::function<void(std::span<std::byte> tile)> compute;
  // In place of `compute`: begins computing on other threads, and returns the tickets of that work.
  // Tiles behind this one begin computing meanwhile.
  std::function<Tickets(std::span<std::byte> tile)> begin_compute;
  // Begins emptying the tile; the tile is free again when its tickets have finished.
  std::function<Tickets(std::span<std::byte> tile)> begin_write;
  // Called once, after the last stage has ended and the tile is free again. The argument is the
  // error of the stage that failed, if any; the stages after it are skipped. Jobs end in the order
  // of push(), except that one whose begin_compute() is done overtakes those that are computed
  // longer. Must not throw, and must not call the pipeline.
  std::function<void(std::exception_ptr)> done;
};

// Confined to one thread at a time: the one that calls push and drain.
class TilePipeline {
 public:
  // Uses the tiles of `ring`; nobody else takes tiles of this ring. Throws InvalidArgument unless
  // the ring has at least 3 tiles: one is read, one computed and one written at the same time.
  explicit TilePipeline(BufferRing& ring);
  // Drains.
  ~TilePipeline();
  TilePipeline(const TilePipeline&) = delete;
  TilePipeline& operator=(const TilePipeline&) = delete;

  // Takes a job and starts its reads as soon as a tile is free. Works on earlier jobs until then,
  // and so blocks. Computes the tiles that have been read meanwhile. The exceptions of stages go to
  // TileJob::done, not to the caller.
  void push(TileJob job);
  // Like push(job), but with a tile that the caller has, of any ring. The tile is returned when the
  // job ends. Waits for no tile and no transfer.
  void push(TileJob job, TileLease tile);
  // Works until every pushed job has ended. Blocks.
  void drain();
  // One piece of the work of drain(): retires or computes one job. If nothing has ended, waits for
  // the transfer that was begun first; without transfers, for the oldest computation. False when no
  // job is in flight. For callers that look for new jobs between pieces.
  bool step();
  // Does what can be done without waiting. Returns whether push() would find a free tile.
  bool poll();

 private:
  struct InFlight {
    TileJob job;
    TileLease lease;
    Tickets pending;
    std::exception_ptr error;
    std::uint64_t begun = 0;  // the order in which the pending transfers were begun
  };
  void begin_read(TileJob job, TileLease lease);
  void do_what_can_be_done();
  void compute_oldest_read();
  // The oldest tile that is computed, or the end of computing_.
  std::list<InFlight>::iterator first_computed();
  void write_what_is_computed();
  void write(const std::list<InFlight>::iterator& computed);
  void retire_oldest_write();
  bool write_was_begun_first() const;
  static bool front_has_ended(const std::list<InFlight>& tiles);

  BufferRing& ring_;
  // Lists: a tile goes from one to the next without an allocation, which could fail while others
  // work on the tile.
  std::list<InFlight> reading_;
  std::list<InFlight> computing_;
  std::list<InFlight> writing_;
  std::uint64_t next_begun_ = 0;
};

}  // namespace sluice::offload
