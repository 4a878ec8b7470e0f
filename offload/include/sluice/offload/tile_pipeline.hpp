#pragma once
// TilePipeline: read, compute, write over tiles, with several tiles in flight, so that the drive
// reads the next tiles and writes the last ones while this one is computed. It knows neither files
// nor optimizers: the three stages are callables.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
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
  // Runs on the thread that drives the pipeline, after the reads have finished, in the order of
  // push().
  std::function<void(std::span<std::byte> tile)> compute;
  // Begins emptying the tile; the tile is free again when these have finished.
  std::function<Tickets(std::span<std::byte> tile)> begin_write;
  // Called once, after the last stage has ended and the tile is free again; the error, if a stage
  // failed (later stages of that job are then left out). Jobs end in the order of push(). Must not
  // throw and must not call the pipeline.
  std::function<void(std::exception_ptr)> done;
};

// Seconds that the driving thread spent waiting; what it waited for is what bounds the pipeline.
struct PipelineStalls {
  double read_seconds = 0;
  double write_seconds = 0;
  double compute_seconds = 0;  // not a stall: inside the compute stage
};

// Confined to one thread at a time: the one that calls push and drain.
class TilePipeline {
 public:
  // Uses the tiles of `ring`, which it shares with nobody; at least 3 tiles, so that one is read,
  // one computed and one written at the same time (throws InvalidArgument otherwise).
  explicit TilePipeline(BufferRing& ring);
  // Drains.
  ~TilePipeline();
  TilePipeline(const TilePipeline&) = delete;
  TilePipeline& operator=(const TilePipeline&) = delete;

  // Takes a job: starts its reads as soon as a tile is free, working on earlier jobs until then
  // (blocks). Computes whatever has been read by then. Does not throw what stages throw: see
  // TileJob::done.
  void push(TileJob job);
  // The same with a tile that the caller has, of any ring; it is given back with the job. Waits for
  // nothing.
  void push(TileJob job, TileLease tile);
  // Works until every pushed job has ended. Blocks.
  void drain();
  // One piece of that work: retires or computes one job, waiting for the transfer that was begun
  // first when none has ended. False when no job is in flight. For callers that look for new jobs
  // in between.
  bool step();
  PipelineStalls stalls() const { return stalls_; }

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
  void retire_oldest_write();
  bool read_has_ended() const;
  bool write_has_ended() const;
  bool write_was_begun_first() const;

  BufferRing& ring_;
  std::deque<InFlight> reading_;
  std::deque<InFlight> writing_;
  std::uint64_t next_begun_ = 0;
  PipelineStalls stalls_;
};

}  // namespace sluice::offload
