#pragma once
// Pump: moves transfers through a backend, piece by piece. It chooses the next piece, bounds the
// pieces in flight and applies completions to their transfers. It has no thread; a DriveQueue runs
// it. It owns neither backend nor transfers.
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
    moved,    // call step() again
    blocked,  // nothing to do until the backend has a completion or a transfer is added
  };
  // One round: reaps completions, then starts and submits as many pieces as fit. Blocks only for
  // the trim of a file. Throws the backend's exception; afterwards only abandon() may be called.
  Progress step();
  // Blocks until the backend has a completion or was woken. Throws the backend's exception.
  void wait() { backend_.wait(); }
  // Whether another transfer could start now; if not, a completion must come first.
  bool has_room() const { return !free_slots_.empty(); }
  // Whether no transfer is queued or in flight. Finished transfers may still wait to be taken.
  bool idle() const;

  // The transfers that have ended since the last call. None of their pieces is in flight.
  TransferList take_finished();
  // Totals as of the last step().
  IoCounters counters() const { return counters_; }
  IoLatency latency() const { return latency_; }

  // Ends every transfer with `error`. The backend must have been destroyed, so nothing is in
  // flight.
  void abandon(const std::exception_ptr& error);

 private:
  using Clock = std::chrono::steady_clock;
  struct Direction {
    TransferList queue;  // begun transfers; pieces are cut from the front one only
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

  std::vector<Piece> pieces_;  // indexed by slot; one slot for each piece in flight
  std::vector<std::uint32_t> free_slots_;
  FixedQueue<std::uint32_t> ready_;  // slots whose request awaits submission, oldest first
  std::size_t in_backend_ = 0;       // requests submitted, not yet reaped
  unsigned refusals_ = 0;            // consecutive refusals by a backend that holds nothing
  BouncePool bounce_;

  TransferList trims_;     // transfers that only await the trim of their file
  TransferList finished_;  // transfers that have ended

  IoCounters counters_;
  IoLatency latency_;
  Clock::time_point counted_until_;
  std::array<IoRequest, kBatch> requests_;
  std::array<IoCompletion, kBatch> completions_;
};

}  // namespace sluice::nvme
