#pragma once
// IoEngine: moves tensors of any size between memory and files. It splits transfers into blocks,
// keeps at most `depth` of them in the backend, continues short transfers, repeats EINTR and
// EAGAIN, and reports the first error only after every block of that transfer has come back (drain,
// then report).
//
// One thread of its own drives the backend. Callers never block in begin_x. Reads overtake waiting
// writes; a waiting write gets at least every fourth block. If the backend itself fails, it is
// destroyed and every transfer, also of the future, ends with its error. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"

namespace sluice::nvme {

struct IoEngineOptions {
  std::uint32_t block_bytes = 1U << 20U;  // a multiple of 4096; DeepSpeed's aio.block_size
  unsigned depth = 32;  // blocks in flight, 1 to 4096; DeepSpeed's aio.queue_depth
};

// Counted where it happens; monotonic over the engine's life.
struct IoCounters {
  std::uint64_t read_bytes = 0;     // bytes of finished reads as asked for
  std::uint64_t written_bytes = 0;  // bytes of finished writes as asked for
  std::uint64_t bounce_bytes = 0;   // bytes copied because address, offset or size were not aligned
  std::uint64_t requests = 0;       // requests handed to the backend, continuations included
  std::uint64_t short_transfers = 0;
  std::uint64_t retries = 0;     // EINTR, EAGAIN; 1000 in a row become an error
  double read_busy_seconds = 0;  // wall time with at least one read / write in flight
  double write_busy_seconds = 0;
};

class IoEngine {
 public:
  // Takes a backend (make_backend, or a wrapped one in tests). Throws InvalidArgument on options
  // out of range; the depth used is the smaller of options.depth and the backend's.
  IoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options);
  // Waits for everything in flight.
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  std::string_view backend_name() const;
  // As used: `depth` is at most the backend's.
  const IoEngineOptions& options() const;

  // Reads data.size() bytes at `offset_bytes`. `data` and `file` must outlive the ticket. Any
  // offset, size and address work; what does not fit the file's alignment goes through a bounce
  // buffer and is counted. The ticket's error is an IoError with path, offset and size; reading
  // beyond the end of the file is one (EIO, "end of file after n bytes"). An empty span is finished
  // at once. Throws InvalidArgument when the range ends beyond the largest file offset, or the
  // file's alignment exceeds a block.
  Ticket begin_read(const SwapFile& file, std::uint64_t offset_bytes, std::span<std::byte> data);
  // Writes data.size() bytes at `offset_bytes`; the same rules. A partly covered first or last
  // block is read, changed and written back whole, so two writes that share a block
  // (offset_alignment()) must not be in flight together. Bytes beyond the end of the range are
  // kept; a write may extend the file, which then ends with the range: the last block is written
  // padded, and once the queue has drained the padding is cut off. allocate() the file first to be
  // spared that. The ticket's error on a full disk is ENOSPC with the free bytes; a write of 0
  // bytes is EIO.
  Ticket begin_write(const SwapFile& file, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);

  IoCounters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::nvme
