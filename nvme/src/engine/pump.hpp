#pragma once
// Pump: moves transfers through a backend, piece by piece: which piece is next, how many are in
// flight, what a completion means for its transfer. It has no thread of its own; IoEngine gives it
// one.
//
// Confined to thread: the engine's.

#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <vector>

#include "backend/fixed_queue.hpp"
#include "engine/bounce_pool.hpp"
#include "engine/piece.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_counters.hpp"
#include "sluice/nvme/io_engine_options.hpp"

namespace sluice::nvme {

class Pump {
 public:
  Pump(IoBackend& backend, const IoEngineOptions& options);

  void add(Transfer& transfer) { queue_of(transfer.op).push(transfer); }

  enum class Progress {
    moved,    // call again
    blocked,  // nothing to do before the backend has a completion or a transfer is added
  };
  // One round: takes what has come back, starts and submits what fits. Does not block, but for a
  // trim of a file. Throws what the backend throws; after that only abandon() may be called.
  Progress step();
  // Blocks until the backend has a completion or was woken; throws what it throws.
  void wait() { backend_.wait(); }
  // Whether one more transfer could be started now; else the next completion comes first anyway.
  bool has_room() const { return !free_slots_.empty(); }
  // No transfer is queued or in flight. Finished ones may wait to be taken.
  bool idle() const;

  // The transfers that have ended: nothing of theirs is in flight.
  TransferList take_finished();
  // As of the last step.
  IoCounters counters() const { return counters_; }
  IoLatency latency() const { return latency_; }

  // Ends everything with `error`. The backend has been destroyed: nothing is in flight any more.
  void abandon(const std::exception_ptr& error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Direction {
    TransferList queue;  // begun; pieces are cut from the front only
    unsigned pieces_in_flight = 0;
  };
  static constexpr std::size_t kBatch = 8;

  Direction& direction_of(IoOp op) { return op == IoOp::read ? reads_ : writes_; }
  TransferList& queue_of(IoOp op) { return direction_of(op).queue; }

  void start_pieces();
  bool start_piece(IoOp op);
  IoOp preferred() const;
  void submit_ready();
  bool reap_batch();
  void take_completion(const IoCompletion& completion, Clock::time_point now);
  void end_piece(std::uint32_t slot, std::exception_ptr error);
  void fail_transfer(Transfer& transfer, std::exception_ptr error);
  void end_if_drained(Transfer& transfer);
  void trim_all();
  void count_busy_time();

  IoBackend& backend_;
  const std::uint32_t block_bytes_;
  const unsigned reads_per_write_;
  Direction reads_;
  Direction writes_;
  unsigned reads_in_a_row_ = 0;

  std::vector<Piece> pieces_;  // by slot; as many as may be in flight
  std::vector<std::uint32_t> free_slots_;
  FixedQueue<std::uint32_t> ready_;  // slots whose request waits to be submitted, the oldest first
  std::size_t in_backend_ = 0;       // requests submitted and not reaped
  unsigned refusals_ = 0;            // in a row, by a backend that holds nothing
  BouncePool bounce_;

  TransferList trims_;     // ended, but for the file's length
  TransferList finished_;  // ended

  IoCounters counters_;
  IoLatency latency_;
  Clock::time_point counted_until_;
  std::array<IoRequest, kBatch> requests_;
  std::array<IoCompletion, kBatch> completions_;
};

}  // namespace sluice::nvme
