#include "engine/piece.hpp"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>

#include "file/space_advice.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::nvme {

void TransferList::push(Transfer& transfer) {
  transfer.next = nullptr;
  (tail_ == nullptr ? head_ : tail_->next) = &transfer;
  tail_ = &transfer;
}

Transfer* TransferList::pop() {
  Transfer* first = head_;
  if (first == nullptr) return nullptr;
  head_ = first->next;
  if (head_ == nullptr) tail_ = nullptr;
  return first;
}

void TransferList::append(TransferList& other) {
  while (Transfer* transfer = other.pop()) push(*transfer);
}

namespace {

// A request of this piece begins at a multiple of the result, counted from the piece's beginning.
// Both alignments are powers of two, so the larger one satisfies both.
std::uint32_t continuation_bytes(const Piece& piece) {
  const SwapFile& file = *piece.transfer->file;
  return std::max(file.offset_alignment(), file.memory_alignment());
}

// `needed_bytes`: of the transfer that found no space.
std::string free_space_advice(const std::string& path, std::uint64_t needed_bytes) {
  constexpr std::uint64_t kMuch = 64 * kMiB;
  std::uint64_t free_bytes = kUnknownFreeBytes;
  try {
    free_bytes = free_disk_bytes(path);
  } catch (const IoError&) {
    // The file system does not tell.
  }
  const bool is_much =
      free_bytes != kUnknownFreeBytes && free_bytes > std::max(16 * needed_bytes, kMuch);
  return is_much ? "the system reports no space although " + what_is_free(free_bytes) + ": " +
                       kSpaceBesideBytes
                 : "the file system is full, " + what_is_free(free_bytes) +
                       "; free some space or choose another directory";
}

[[noreturn]] void fail(const Piece& piece, int error_number, const std::string& advice) {
  const Transfer& transfer = *piece.transfer;
  throw IoError(error_number, transfer.op == IoOp::read ? "read" : "write", transfer.file->path(),
                transfer.offset_bytes, transfer.size_bytes, advice);
}

[[noreturn]] void fail_with_errno(const Piece& piece, int error_number) {
  const Transfer& transfer = *piece.transfer;
  if (error_number == ENOSPC)
    fail(piece, ENOSPC, free_space_advice(transfer.file->path(), transfer.size_bytes));
  fail(piece, error_number,
       "in the block of " + std::to_string(piece.io_bytes) + " bytes at offset " +
           std::to_string(piece.file_offset_bytes));
}

// `reached_bytes`: the file offset up to which bytes arrived.
[[noreturn]] void fail_at_end_of_file(const Piece& piece, std::uint64_t reached_bytes) {
  const Transfer& transfer = *piece.transfer;
  // Blocks complete in any order, so the first block beyond the end may be far from the end.
  const std::uint64_t end = std::min(reached_bytes, transfer.file->size_bytes());
  const std::uint64_t seen = end > transfer.offset_bytes ? end - transfer.offset_bytes : 0;
  fail(piece, EIO, "end of file after " + std::to_string(seen) + " bytes");
}

void begin_write_phase(Piece& piece, IoCounters& counters) {
  piece.phase = PiecePhase::write;
  piece.needed_bytes = piece.io_bytes;
  piece.done_bytes = 0;
  piece.repeats = 0;
  if (piece.bounce) {
    std::memcpy(piece.bounce.get() + piece.skip_bytes, piece.user_data, piece.user_bytes);
    counters.bounce_bytes += piece.user_bytes;
  }
}

// Begins the write of a part of a block. The other bytes of the block stay. A block that reaches
// beyond the end of the file is padded with zeros, which a trim removes.
void begin_partial_write(Piece& piece, IoCounters& counters) {
  Transfer& transfer = *piece.transfer;
  const std::uint64_t file_bytes = transfer.file->size_bytes();
  const std::uint64_t block_end = piece.file_offset_bytes + piece.io_bytes;
  const std::uint64_t user_end = piece.skip_bytes + piece.user_bytes;
  const std::uint64_t existing =
      file_bytes > piece.file_offset_bytes
          ? std::min<std::uint64_t>(file_bytes - piece.file_offset_bytes, piece.io_bytes)
          : 0;
  if (file_bytes < block_end) {
    transfer.trim_to_bytes = std::max(file_bytes, piece.file_offset_bytes + user_end);
    transfer.trim_below_bytes = block_end;
  }
  std::memset(piece.bounce.get(), 0, piece.io_bytes);
  const bool all_replaced = piece.skip_bytes == 0 && user_end >= existing;
  if (existing == 0 || all_replaced) return begin_write_phase(piece, counters);
  piece.phase = PiecePhase::fill;
  piece.needed_bytes = static_cast<std::uint32_t>(existing);
}

}  // namespace

Piece next_piece(Transfer& transfer, std::uint32_t block_bytes) {
  assert(!transfer.all_started());
  const std::uint32_t alignment = transfer.file->offset_alignment();
  const std::uint64_t at = transfer.offset_bytes + transfer.started_bytes;
  const std::uint64_t left = transfer.size_bytes - transfer.started_bytes;
  Piece piece;
  piece.transfer = &transfer;
  piece.user_data = transfer.data + transfer.started_bytes;
  piece.file_offset_bytes = align_down(at, alignment);
  piece.skip_bytes = static_cast<std::uint32_t>(at - piece.file_offset_bytes);
  if (piece.skip_bytes != 0 || left < alignment) {
    // The first or last block, partly covered.
    piece.io_bytes = alignment;
    piece.user_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(left, alignment - piece.skip_bytes));
  } else {
    const std::uint64_t most = align_down(block_bytes, alignment);
    piece.io_bytes = static_cast<std::uint32_t>(std::min(most, align_down(left, alignment)));
    piece.user_bytes = piece.io_bytes;
  }
  return piece;
}

bool needs_bounce(const Piece& piece) {
  const auto address = reinterpret_cast<std::uintptr_t>(piece.user_data);
  return piece.user_bytes != piece.io_bytes ||
         address % piece.transfer->file->memory_alignment() != 0;
}

void begin_phases(Piece& piece, IoCounters& counters) {
  if (piece.transfer->op == IoOp::read) {
    piece.phase = PiecePhase::read;
    piece.needed_bytes = piece.skip_bytes + piece.user_bytes;
  } else if (piece.user_bytes == piece.io_bytes) {
    begin_write_phase(piece, counters);
  } else {
    begin_partial_write(piece, counters);
  }
}

IoRequest request_of(Piece& piece, std::uint64_t tag) {
  // With direct I/O, a short transfer may end at an offset where no request may begin. The bytes
  // since the last allowed offset are moved again.
  const auto from =
      static_cast<std::uint32_t>(align_down(piece.done_bytes, continuation_bytes(piece)));
  piece.requested_from_bytes = from;
  IoRequest request;
  request.op = piece.phase == PiecePhase::write ? IoOp::write : IoOp::read;
  request.fd = piece.transfer->file->fd();
  request.data = piece.buffer() + from;
  request.size_bytes = piece.io_bytes - from;
  request.offset_bytes = piece.file_offset_bytes + from;
  request.tag = tag;
  return request;
}

namespace {

// Counts a repeat of the request. The number of repeats is bounded, so that nothing loops for ever.
PieceOutcome repeat(Piece& piece, int error_number, const std::string& advice) {
  if (++piece.repeats > kMaxRepeats) {
    fail(piece, error_number, advice + " " + std::to_string(kMaxRepeats) + " times in a row");
  }
  return PieceOutcome::again;
}

PieceOutcome continue_short(Piece& piece, std::uint32_t reached_bytes, IoCounters& counters) {
  const std::uint64_t reached_in_file = piece.file_offset_bytes + reached_bytes;
  if (reached_bytes == piece.requested_from_bytes) {  // the kernel moved nothing
    if (piece.phase == PiecePhase::write) fail(piece, EIO, "the file system wrote 0 bytes");
    fail_at_end_of_file(piece, reached_in_file);
  }
  ++counters.short_transfers;
  if (reached_bytes > piece.done_bytes) {
    piece.done_bytes = reached_bytes;
    piece.repeats = 0;
    return PieceOutcome::again;
  }
  // The request brought no new byte: a file that ends inside a block reads like this with direct
  // I/O.
  if (piece.phase != PiecePhase::write && piece.transfer->file->size_bytes() <= reached_in_file) {
    fail_at_end_of_file(piece, reached_in_file);
  }
  return repeat(piece, EIO, "short transfers without progress");
}

}  // namespace

PieceOutcome advance(Piece& piece, std::int64_t result, IoCounters& counters) {
  if (result == -EINTR || result == -EAGAIN) {
    ++counters.retries;
    return repeat(piece, static_cast<int>(-result), "interrupted or refused");
  }
  if (result < 0) fail_with_errno(piece, static_cast<int>(-result));
  const std::uint32_t requested = piece.io_bytes - piece.requested_from_bytes;
  if (result > requested) fail(piece, EIO, "the backend reported more bytes than were asked for");
  const std::uint32_t reached = piece.requested_from_bytes + static_cast<std::uint32_t>(result);
  if (reached < piece.needed_bytes) return continue_short(piece, reached, counters);
  if (piece.phase == PiecePhase::fill) {
    begin_write_phase(piece, counters);
    return PieceOutcome::again;
  }
  if (piece.phase == PiecePhase::read && piece.bounce) {
    std::memcpy(piece.user_data, piece.bounce.get() + piece.skip_bytes, piece.user_bytes);
    counters.bounce_bytes += piece.user_bytes;
  }
  return PieceOutcome::ended;
}

}  // namespace sluice::nvme
