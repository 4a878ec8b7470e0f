#pragma once
// The two units of work inside the engine: a Transfer, which a caller began, and the Pieces it is
// cut into, each at most one block and one request in the backend at a time.
//
// Thread-compatible: a Transfer is handed from the caller to the engine's thread; Pieces never
// leave it.

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

// Consecutive EINTR, EAGAIN or transfers without progress before a request counts as failed.
inline constexpr unsigned kMaxRepeats = 1000;

struct Transfer {
  IoOp op = IoOp::read;
  const SwapFile* file = nullptr;
  std::byte* data = nullptr;  // not written to by IoOp::write
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;

  // Transfers that were begun together end together: the first of them has their ticket.
  Transfer* leader = nullptr;          // itself when it is alone
  std::optional<TicketSource> source;  // of the leader, as are the next two
  std::size_t group_left = 0;
  std::exception_ptr group_error;  // the first one seen
  // For the trace, of the leader.
  std::chrono::steady_clock::time_point begun_at;
  std::uint64_t group_bytes = 0;

  std::uint64_t started_bytes = 0;  // the first so many bytes have been cut into pieces
  unsigned pieces_in_flight = 0;
  std::exception_ptr error;  // the first one seen; then no more pieces are cut
  // Set when the last block is written whole beyond the end of the file: the file is cut back to
  // trim_to_bytes if it then ends after that, but not after trim_below_bytes.
  std::uint64_t trim_to_bytes = 0;
  std::uint64_t trim_below_bytes = 0;

  Transfer* next = nullptr;  // in one TransferList at a time

  std::uint64_t end_bytes() const { return offset_bytes + size_bytes; }
  bool needs_trim() const { return trim_to_bytes < trim_below_bytes; }
  bool all_started() const { return error != nullptr || started_bytes == size_bytes; }
};

// First in, first out; owns nothing.
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

// What a piece's next request does.
//   read   the piece of a read: file to user memory, or to the bounce buffer
//   fill   the piece of a write that covers a block in part: first the block's old bytes are read
//   write  user memory, or the changed bounce buffer, to the file
enum class PiecePhase { read, fill, write };

struct Piece {
  Transfer* transfer = nullptr;
  PiecePhase phase = PiecePhase::read;
  std::byte* user_data = nullptr;  // this piece's first byte in the caller's memory
  std::uint32_t user_bytes = 0;
  std::uint64_t file_offset_bytes = 0;  // where its requests begin: aligned
  std::uint32_t skip_bytes = 0;         // from there to the caller's first byte
  std::uint32_t io_bytes = 0;           // what its requests cover: aligned
  AlignedMemory bounce;                 // null: straight from or to user_data

  // Of the phase. A read may need less than io_bytes: the file may end inside the last block.
  std::uint32_t needed_bytes = 0;
  std::uint32_t done_bytes = 0;
  std::uint32_t requested_from_bytes = 0;  // where the outstanding request begins
  unsigned repeats = 0;
  std::chrono::steady_clock::time_point submitted_at;  // the outstanding request

  std::byte* buffer() const { return bounce ? bounce.get() : user_data; }
};

// The next piece of `transfer` (not all_started()), which is not changed; `bounce` is left null.
Piece next_piece(Transfer& transfer, std::uint32_t block_bytes);
bool needs_bounce(const Piece& piece);

// Sets up the first phase; of a write through a bounce buffer, the copy into it or the fill before
// it, and the transfer's trim. Throws IoError when the file's size cannot be had.
void begin_phases(Piece& piece, IoCounters& counters);

// The request that continues the piece where it stands.
IoRequest request_of(Piece& piece, std::uint64_t tag);

enum class PieceOutcome { again, ended };

// Takes the backend's answer to the last request. `again`: request_of gives the next one. `ended`:
// all bytes have arrived. Throws IoError (or what fstat throws) when the piece has failed.
PieceOutcome advance(Piece& piece, std::int64_t result, IoCounters& counters);

}  // namespace sluice::nvme
