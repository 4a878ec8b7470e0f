#pragma once
// IoEngine: moves tensors of any size between memory and files. It splits a transfer into blocks,
// keeps at most `depth` blocks in the backend, continues short transfers, and repeats EINTR and
// EAGAIN. It reports a transfer's first error after every block of the transfer has come back
// (drain, then report).
//
// Each drive has a backend of its own and a thread that drives it. Callers never wait for I/O in
// begin_x. Reads overtake waiting writes: a waiting write gets one block after every
// `reads_per_write` blocks read. A failed backend is destroyed; its error then ends every current
// and future transfer. A forked child has none of the threads: it begins no transfer with an engine
// of its parent, and does not destroy one. Thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"  // what the calls throw
#include "sluice/base/ticket.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/nvme/io_backend.hpp"
#include "sluice/nvme/io_counters.hpp"
#include "sluice/nvme/io_engine_options.hpp"
#include "sluice/nvme/io_ranges.hpp"
#include "sluice/nvme/striped_file.hpp"

namespace sluice::nvme {

class IoEngine;

// Registration: the owner of a registered piece of memory or file (IoEngine::register_memory,
// register_file). Its destructor removes the registration and blocks until the engine's thread has
// done so. Destroy it after every ticket that uses the memory or file has ended, and before the
// memory is freed, the file is closed or the engine is destroyed. Move-only. Thread-compatible:
// callers synchronise.
class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept { *this = std::move(other); }
  Registration& operator=(Registration&& other) noexcept;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { end(); }

  // Whether transfers use the registration; if not, why_not() gives the reason in one line.
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

//   auto [backend, why_not] = make_backend(BackendKind::automatic, 32, 4);
//   SwapFile file("x.swap", OpenMode::create, DirectIo::automatic);
//   IoEngine engine(std::move(backend), {});
//   engine.begin_write(file, 0, bytes).finish();
class IoEngine {
 public:
  // Owns `backend` (from make_backend; tests wrap one). The depth in use is the smaller of
  // options.depth and the backend's. Throws InvalidArgument when the backend is null or an option
  // is out of range.
  IoEngine(std::unique_ptr<IoBackend> backend, IoEngineOptions options);
  // Like the constructor above, with one queue for each backend. A file's transfers use the queue
  // SwapFile::drive(), modulo the number of queues.
  IoEngine(std::vector<std::unique_ptr<IoBackend>> backends, IoEngineOptions options);
  // Blocks until every transfer has ended.
  ~IoEngine();
  IoEngine(const IoEngine&) = delete;
  IoEngine& operator=(const IoEngine&) = delete;

  std::string_view backend_name() const;
  // The options in use.
  const IoEngineOptions& options() const;

  // Reads data.size() bytes at `offset_bytes`. `data` and `file` outlive the ticket. Offset, size
  // and address may be arbitrary; unaligned parts use a bounce buffer and are counted. The ticket's
  // error is an IoError with path, offset and size; a read beyond the end of the file fails (EIO,
  // "end of file after n bytes"). An empty span gives an ended ticket. Throws InvalidArgument when
  // the range, empty or not, ends beyond the largest file offset, when the file's alignment exceeds
  // a block, and in a forked child.
  Ticket begin_read(const SwapFile& file, std::uint64_t offset_bytes, std::span<std::byte> data);
  // Writes data.size() bytes at `offset_bytes`, under the rules of begin_read(). A partly covered
  // first or last block is read, changed and written back, so two writes that share a block
  // (offset_alignment()) must not be in flight together. Bytes outside the range stay. A write may
  // extend the file, which then ends with the range: the last block is written padded, and the
  // padding is truncated once the queue has drained; allocate() the file first to avoid this. On a
  // full disk the ticket's error is ENOSPC with the free bytes. A kernel that writes 0 bytes is
  // EIO.
  Ticket begin_write(const SwapFile& file, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);

  // Like begin_read() and begin_write(), for several ranges with one ticket; much cheaper when the
  // ranges are many and small. The ticket ends when all ranges have ended, with the error of the
  // first range that failed. `ranges` itself need not outlive the call. Throw as begin_read() and
  // begin_write() do, before any range is begun. Where a range covers a block partly, no two ranges
  // of begin_writes() may share a block, else it throws InvalidArgument. Ranges of whole blocks are
  // not checked.
  Ticket begin_reads(const SwapFile& file, std::span<const ReadRange> ranges);
  Ticket begin_writes(const SwapFile& file, std::span<const WriteRange> ranges);

  // Like begin_read() and begin_write(), for a striped file: all drives move their chunks at once.
  // The ticket ends when every chunk has ended.
  Ticket begin_read(const StripedFile& file, std::uint64_t offset_bytes, std::span<std::byte> data);
  Ticket begin_write(const StripedFile& file, std::uint64_t offset_bytes,
                     std::span<const std::byte> data);

  // Register memory, or a file, that transfers use repeatedly: the kernel then pins the pages, or
  // takes the file's reference, once instead of for each request (io_uring's registered buffers and
  // files). Transfers elsewhere work as before. The memory must stay allocated, or the file open,
  // until the Registration is gone. If a file is closed before, the kernel keeps it open, and
  // transfers of another file that gets its descriptor number go to the closed one. A file that is
  // registered twice stays registered until both Registrations are gone. Block until the engine's
  // thread has answered. Pinned pages count against RLIMIT_MEMLOCK unless the process has
  // CAP_IPC_LOCK. Throw InvalidArgument for a file that was moved to another SwapFile, and the
  // error of a failed backend.
  Registration register_memory(std::span<std::byte> memory);
  Registration register_file(const SwapFile& file);

  std::size_t drives() const;
  // Totals of all drives, and of one: `drive` is less than drives(), else InvalidArgument.
  IoCounters counters() const;
  IoCounters drive_counters(std::size_t drive) const;
  // Latencies of all drives. Blocks until the engine's threads have answered. Throws the error of a
  // failed backend.
  IoLatency latency() const;

 private:
  friend class Registration;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::nvme
