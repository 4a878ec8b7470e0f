#pragma once
// IoEngine: moves tensors of any size between memory and files. It splits transfers into blocks,
// keeps at most `depth` of them in the backend, continues short transfers, repeats EINTR and
// EAGAIN, and reports the first error only after every block of that transfer has come back (drain,
// then report).
//
// Each drive has a backend and a thread of its own that drives it. Callers never block in begin_x.
// Reads overtake waiting writes; a waiting write gets a block after every `reads_per_write` of
// them. If the backend itself fails, it is destroyed and every transfer, also of the future, ends
// with its error. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_counters.hpp"
#include "sluice/nvme/io_engine_options.hpp"
#include "sluice/nvme/io_ranges.hpp"
#include "sluice/nvme/striped_file.hpp"

namespace sluice::nvme {

class IoEngine;

// What IoEngine::register_memory or register_file registered; ends that on destruction, which must
// come before the memory is freed, the file closed or the engine destroyed, and after every ticket
// that uses it has ended. Move-only. Thread-compatible: callers synchronise.
class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept { *this = std::move(other); }
  Registration& operator=(Registration&& other) noexcept;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { end(); }

  // Whether transfers go the cheaper way; else why_not() says in one line why.
  bool active() const { return engine_ != nullptr; }
  const std::string& why_not() const { return why_not_; }

 private:
  friend class IoEngine;
  void end() noexcept;

  IoEngine* engine_ = nullptr;
  std::span<std::byte> memory_;
  int fd_ = -1;
  std::size_t drive_ = 0;
  std::string why_not_;
};

class IoEngine {
 public:
  // Takes a backend (make_backend, or a wrapped one in tests). Throws InvalidArgument on options
  // out of range; the depth used is the smaller of options.depth and the backend's.
  IoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options);
  // The same with a queue for each of several drives: a file's transfers go through the queue of
  // SwapFile::drive(), modulo their number.
  IoEngine(std::vector<std::unique_ptr<IoBackend>> backends, IoEngineOptions options);
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

  // The same for several ranges of the file with one ticket, at a fraction of the cost where they
  // are many and small. It ends when all have ended, with the error of the first that failed. The
  // list itself may go when the call returns. Throws before any range is begun.
  Ticket begin_reads(const SwapFile& file, std::span<const ReadRange> ranges);
  Ticket begin_writes(const SwapFile& file, std::span<const WriteRange> ranges);

  // The same for a striped file: all drives move their chunks at once, and the ticket ends when all
  // have.
  Ticket begin_read(const StripedFile& file, std::uint64_t offset_bytes, std::span<std::byte> data);
  Ticket begin_write(const StripedFile& file, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);

  // Tells the kernel once about memory that transfers use again and again, so that it need not pin
  // its pages for each of them (io_uring's registered buffers), or about a file. Transfers
  // elsewhere work as before. Blocks until the engine's thread has done it. Pinned pages count
  // against RLIMIT_MEMLOCK where the process has no CAP_IPC_LOCK. Throws why the backend has
  // failed, if it has.
  Registration register_memory(std::span<std::byte> memory);
  Registration register_file(const SwapFile& file);

  std::size_t drives() const;
  IoCounters counters() const;  // of all drives
  IoCounters drive_counters(std::size_t drive) const;
  // Blocks until the engine's thread has answered.
  IoLatency latency() const;

 private:
  friend class Registration;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::nvme
