#include "engine/pump.hpp"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

namespace {

// Enough to copy one block while others are in flight. Memory stays small for any depth.
constexpr std::size_t kMaxBounceBuffers = 8;

// Truncates the padding of a partly covered last block. Nothing may be in flight: the truncation
// could cut off a later write, and ftruncate waits for direct I/O whose completion this very thread
// may have to run. A file that became longer meanwhile keeps the padding.
void trim_file(const Transfer& transfer) {
  const SwapFile& file = *transfer.file;
  const std::uint64_t size_bytes = file.size_bytes();
  if (size_bytes <= transfer.trim_to_bytes || size_bytes > transfer.trim_below_bytes) return;
  SLUICE_SYSCALL(::ftruncate(file.fd(), static_cast<off_t>(transfer.trim_to_bytes)), file.path());
}

}  // namespace

Pump::Pump(IoBackend& backend, const IoEngineOptions& options)
    : backend_(backend),
      block_bytes_(options.block_bytes),
      reads_per_write_(options.reads_per_write),
      pieces_(options.depth),
      ready_(options.depth),
      bounce_(options.block_bytes, std::min<std::size_t>(options.depth, kMaxBounceBuffers)),
      counted_until_(Clock::now()) {
  free_slots_.reserve(options.depth);
  for (unsigned slot = options.depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

bool Pump::idle() const {
  return reads_.queue.empty() && writes_.queue.empty() && trims_.empty() &&
         reads_.pieces_in_flight == 0 && writes_.pieces_in_flight == 0;
}

TransferList Pump::take_finished() {
  return std::exchange(finished_, TransferList{});
}

Pump::Progress Pump::step() {
  count_busy_time();
  // Reaps in small batches, so that the drive gets new requests while other completions are being
  // processed. The loop is bounded, because waiters are told between rounds.
  bool more = true;
  for (std::size_t reaped = 0; more && reaped < pieces_.size(); reaped += kBatch) {
    more = reap_batch();
    if (!trims_.empty() && reads_.pieces_in_flight + writes_.pieces_in_flight == 0) trim_all();
    start_pieces();
    submit_ready();
  }
  // A request that is ready although the backend holds nothing was refused; it must be submitted
  // again.
  const bool refused = !ready_.empty() && in_backend_ == 0;
  // Pieces that fail before submission may leave a trim with nothing in flight.
  const bool trims = !trims_.empty() && reads_.pieces_in_flight + writes_.pieces_in_flight == 0;
  return refused || trims || more ? Progress::moved : Progress::blocked;
}

// Adds the time since the last call to each direction that had a piece in flight.
void Pump::count_busy_time() {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - counted_until_).count();
  if (reads_.pieces_in_flight > 0) counters_.read_busy_seconds += seconds;
  if (writes_.pieces_in_flight > 0) counters_.write_busy_seconds += seconds;
  counted_until_ = now;
}

// The direction of the next piece: reads first, because someone waits for a read.
IoOp Pump::preferred() const {
  if (reads_.queue.empty()) return IoOp::write;
  const bool writes_turn = reads_in_a_row_ >= reads_per_write_ && !writes_.queue.empty();
  return writes_turn ? IoOp::write : IoOp::read;
}

void Pump::start_pieces() {
  // A trim needs an empty backend, so no piece starts before it.
  while (trims_.empty() && !free_slots_.empty()) {
    const IoOp op = preferred();
    const IoOp other = op == IoOp::read ? IoOp::write : IoOp::read;
    if (!start_piece(op) && !start_piece(other)) return;
  }
}

// Starts the next piece of this direction. False when there is no piece, or no bounce buffer.
bool Pump::start_piece(IoOp op) {
  Direction& direction = direction_of(op);
  if (direction.queue.empty()) return false;
  Transfer& transfer = *direction.queue.front();
  Piece piece = next_piece(transfer, block_bytes_);
  try {
    if (needs_bounce(piece)) {
      piece.bounce = bounce_.try_take();
      if (!piece.bounce) return false;
    }
    begin_phases(piece, counters_);
  } catch (...) {
    if (piece.bounce) bounce_.give_back(std::move(piece.bounce));
    fail_transfer(transfer, std::current_exception());
    end_if_drained(transfer);
    return true;
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  transfer.started_bytes += piece.user_bytes;
  ++transfer.pieces_in_flight;
  ++direction.pieces_in_flight;
  if (transfer.all_started()) direction.queue.pop();
  pieces_[slot] = std::move(piece);
  ready_.push(slot);
  reads_in_a_row_ = op == IoOp::read ? reads_in_a_row_ + 1 : 0;
  return true;
}

void Pump::submit_ready() {
  while (!ready_.empty()) {
    const std::size_t count = std::min(ready_.size(), kBatch);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t slot = ready_.at(i);
      requests_[i] = request_of(pieces_[slot], slot);
    }
    const std::size_t taken = backend_.submit({requests_.data(), count});
    assert(taken <= count);
    for (std::size_t i = 0; i < taken; ++i) ready_.pop();
    // counted_until_ is the time at the start of this round.
    for (std::size_t i = 0; i < taken; ++i) pieces_[requests_[i].tag].submitted_at = counted_until_;
    in_backend_ += taken;
    counters_.requests += taken;
    if (taken > 0) refusals_ = 0;
    if (taken < count) break;
  }
  if (ready_.empty() || in_backend_ > 0) return;
  if (++refusals_ > kMaxRepeats) {
    refusals_ = 0;
    throw IoError(EBUSY, "submit", std::string(backend_.name()), 0, 0,
                  "the backend holds nothing and takes nothing");
  }
  std::this_thread::yield();
}

// Processes one batch of completions; returns whether there may be more.
bool Pump::reap_batch() {
  if (in_backend_ == 0) return false;
  const std::size_t count = backend_.reap(completions_);
  if (count == 0) return false;
  in_backend_ -= count;
  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < count; ++i) take_completion(completions_[i], now);
  return count == completions_.size();
}

void Pump::take_completion(const IoCompletion& completion, Clock::time_point now) {
  const auto slot = static_cast<std::uint32_t>(completion.tag);
  assert(slot < pieces_.size() && pieces_[slot].transfer != nullptr);
  Piece& piece = pieces_[slot];
  (piece.phase == PiecePhase::write ? latency_.writes : latency_.reads)
      .record(now - piece.submitted_at);
  try {
    // A transfer that has failed submits nothing more.
    if (advance(piece, completion.result, counters_) == PieceOutcome::again &&
        !piece.transfer->error) {
      ready_.push(slot);
      return;
    }
    end_piece(slot, nullptr);
  } catch (...) {
    end_piece(slot, std::current_exception());
  }
}

void Pump::end_piece(std::uint32_t slot, std::exception_ptr error) {
  Piece piece = std::exchange(pieces_[slot], Piece{});
  free_slots_.push_back(slot);
  if (piece.bounce) bounce_.give_back(std::move(piece.bounce));
  Transfer& transfer = *piece.transfer;
  --direction_of(transfer.op).pieces_in_flight;
  --transfer.pieces_in_flight;
  if (error) fail_transfer(transfer, std::move(error));
  end_if_drained(transfer);
}

void Pump::fail_transfer(Transfer& transfer, std::exception_ptr error) {
  if (transfer.error) return;
  // Only the front transfer of a queue has both pieces in flight and pieces to cut.
  TransferList& queue = queue_of(transfer.op);
  if (queue.front() == &transfer) queue.pop();
  transfer.error = std::move(error);
}

void Pump::end_if_drained(Transfer& transfer) {
  if (transfer.pieces_in_flight > 0 || !transfer.all_started()) return;
  if (transfer.needs_trim()) {
    trims_.push(transfer);
    return;
  }
  if (!transfer.error) {
    (transfer.op == IoOp::read ? counters_.read_bytes : counters_.written_bytes) +=
        transfer.size_bytes;
  }
  finished_.push(transfer);
}

void Pump::trim_all() {
  while (Transfer* transfer = trims_.pop()) {
    try {
      trim_file(*transfer);
    } catch (...) {
      if (!transfer->error) transfer->error = std::current_exception();
    }
    transfer->trim_below_bytes = transfer->trim_to_bytes;
    end_if_drained(*transfer);
  }
}

void Pump::abandon(const std::exception_ptr& error) {
  for (Direction* direction : {&reads_, &writes_}) {
    while (Transfer* transfer = direction->queue.front()) {
      fail_transfer(*transfer, error);
      end_if_drained(*transfer);
    }
  }
  for (std::uint32_t slot = 0; slot < pieces_.size(); ++slot) {
    if (pieces_[slot].transfer != nullptr) end_piece(slot, error);
  }
  trim_all();
}

}  // namespace sluice::nvme
