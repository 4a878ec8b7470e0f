#pragma once
// The two units of work inside the engine: a Transfer, begun by a caller, and the Pieces that it is
// cut into. A Piece is at most one block, and has at most one request in the backend at a time.
//
// Thread-compatible: the caller hands a Transfer to the engine's thread; Pieces stay on that
// thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>

#include "engine/bounce_pool.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_counters.hpp"

namespace sluice::nvme {

// The most consecutive EINTR, EAGAIN or short transfers without progress of one request.
inline constexpr unsigned kMaxRepeats = 1000;

struct Transfer {
  IoOp op = IoOp::read;
  const SwapFile* file = nullptr;
  std::byte* data = nullptr;  // not written to by IoOp::write
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  // Transfers begun together end together. Their leader, the first one, has the ticket.
  Transfer* leader = nullptr;  // points at itself for a single transfer
  // The fields down to group_bytes are used in the leader only.
  std::optional<TicketSource> source;
  std::size_t group_left = 0;
  std::exception_ptr group_error;  // the first error seen
  // For the trace.
  std::chrono::steady_clock::time_point begun_at;
  std::uint64_t group_bytes = 0;

  std::uint64_t started_bytes = 0;  // bytes, from the beginning, that have been cut into pieces
  unsigned pieces_in_flight = 0;
  std::exception_ptr error;  // the first error seen; no piece is cut afterwards
  // Set when a padded last block is written beyond the end of the file. A file that then ends in
  // (trim_to_bytes, trim_below_bytes] is truncated to trim_to_bytes.
  std::uint64_t trim_to_bytes = 0;
  std::uint64_t trim_below_bytes = 0;

  Transfer* next = nullptr;  // a transfer is in at most one TransferList

  std::uint64_t end_bytes() const { return offset_bytes + size_bytes; }
  bool needs_trim() const { return trim_to_bytes < trim_below_bytes; }
  bool all_started() const { return error != nullptr || started_bytes == size_bytes; }
};

// A first-in first-out list. It owns nothing.
class TransferList {
 public:
  bool empty() const { return head_ == nullptr; }
  Transfer* front() const { return head_; }
  void push(Transfer& transfer);
  Transfer* pop();                   // null when empty
  void append(TransferList& other);  // `other` is empty afterwards

 private:
  Transfer* head_ = nullptr;
  Transfer* tail_ = nullptr;
};

// The next request of a piece.
//   read   the piece of a read: file to user memory, or to the bounce buffer
//   fill   the piece of a write that covers a block partly: reads the block's old bytes first
//   write  user memory, or the changed bounce buffer, to the file
enum class PiecePhase { read, fill, write };

struct Piece {
  Transfer* transfer = nullptr;
  PiecePhase phase = PiecePhase::read;
  std::byte* user_data = nullptr;  // this piece's first byte in the caller's memory
  std::uint32_t user_bytes = 0;
  std::uint64_t file_offset_bytes = 0;  // begin of the piece's requests; aligned
  std::uint32_t skip_bytes = 0;         // from file_offset_bytes to the caller's first byte
  std::uint32_t io_bytes = 0;           // size of the piece's requests; aligned
  AlignedMemory bounce;                 // null: requests use user_data directly

  // State of the phase. A read may need less than io_bytes: the file may end inside the last block.
  std::uint32_t needed_bytes = 0;
  std::uint32_t done_bytes = 0;
  std::uint32_t requested_from_bytes = 0;  // begin of the outstanding request in the piece
  unsigned repeats = 0;
  std::chrono::steady_clock::time_point submitted_at;  // of the outstanding request

  std::byte* buffer() const { return bounce ? bounce.get() : user_data; }
};

// The next piece of `transfer`, without a bounce buffer. `transfer` is not all_started() and stays
// unchanged.
Piece next_piece(Transfer& transfer, std::uint32_t block_bytes);
bool needs_bounce(const Piece& piece);

// Sets up the first phase. A write through a bounce buffer also gets its copy or its fill, and the
// transfer its trim. Throws IoError when the system does not tell the file's size.
void begin_phases(Piece& piece, IoCounters& counters);

// The next request of the piece.
IoRequest request_of(Piece& piece, std::uint64_t tag);

enum class PieceOutcome { again, ended };

// Processes the backend's answer to the last request. `again`: request_of() gives the next request.
// `ended`: all bytes have moved. Throws IoError when the piece has failed.
PieceOutcome advance(Piece& piece, std::int64_t result, IoCounters& counters);

}  // namespace sluice::nvme
