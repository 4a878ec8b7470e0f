#pragma once
// IoBackend: the three verbs of asynchronous I/O, submit, reap and wait, over io_uring,
// libaio or plain threads. It moves bytes and reports what the kernel said; splitting, short
// transfers, retries and errors are IoEngine's, once for all backends.
//
// Confined to one thread (the engine's), except wake().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice::nvme {

enum class IoOp { read, write };

// One positioned transfer. `data` stays valid until the completion with the same tag has been
// reaped.
struct IoRequest {
  IoOp op = IoOp::read;
  int fd = -1;
  std::byte* data = nullptr;  // not written to by IoOp::write
  std::uint32_t size_bytes = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t tag = 0;  // the caller's; comes back in the completion
};

// What the kernel answered: bytes moved (short counts included), or -errno.
struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual std::string_view name() const = 0;
  // Requests it can hold between submit and reap.
  virtual unsigned depth() const = 0;
  // Takes requests, in order; returns how many were taken, fewer (also 0) when the queue is full.
  // The kernel has them at the latest after the next wait, or the next reap that finds nothing, so
  // that one system call can hand them over and wait. Does not block, but where a backend says so.
  // Throws IoError when the backend itself fails.
  virtual std::size_t submit(std::span<const IoRequest> requests) = 0;
  // Takes finished requests, in any order; returns how many. Does not block.
  virtual std::size_t reap(std::span<IoCompletion> completions) = 0;
  // Blocks until reap would return something or wake() was called since the last wait.
  virtual void wait() = 0;
  // Ends the current or the next wait. Thread-safe, does not block.
  virtual void wake() = 0;

  // Prepares memory, or an open file, for cheaper requests; requests work either way. Returns
  // whether that was done, else why not in one line. What was added must be removed before the
  // memory is freed or the descriptor closed, and no request that uses it may be in flight then.
  // Adding what is there already, or removing what is not, is a mistake.
  virtual bool add_memory(std::span<std::byte> region, std::string& why_not);
  virtual void remove_memory(std::span<std::byte> /*region*/) {}
  virtual bool add_file(int fd, std::string& why_not);
  virtual void remove_file(int /*fd*/) {}
};

enum class BackendKind { automatic, io_uring, libaio, threads };

// "auto", "io_uring", "libaio", "threads"; throws InvalidArgument with the nearest valid name.
BackendKind parse_backend(std::string_view name);

struct BackendChoice {
  std::unique_ptr<IoBackend> backend;
  // One line when something better could not be had ("libaio: io_uring: io_uring_setup ..."), with
  // the reason for each, else empty.
  std::string why_not_better;
};

// Whether io_uring can be had here, found out by doing a no-op on a ring; `why` says what failed
// and what to change.
bool io_uring_available(std::string& why);

// Whether libaio can be had here, found out by reading an empty file with it; `why` as above.
bool libaio_available(std::string& why);

// io_uring only: a thread of the kernel looks for new requests, so that handing them over takes no
// system call (IORING_SETUP_SQPOLL). It takes a core while there is work and for 10 ms after.
enum class SubmitPolling { off, on };

// Makes the backend asked for. `automatic` probes by doing: io_uring where it works, else libaio,
// else threads, with the reasons. A backend asked for by name that cannot be had throws
// InvalidArgument with the reason. `depth` of 1 to 4096; `io_threads` of 1 to 64 (used by the
// threads backend only). Other backends have no polling: `on` is an io_uring that has it, or, with
// another backend, InvalidArgument.
BackendChoice make_backend(BackendKind kind, unsigned depth, unsigned io_threads,
                           SubmitPolling polling = SubmitPolling::off);

}  // namespace sluice::nvme
