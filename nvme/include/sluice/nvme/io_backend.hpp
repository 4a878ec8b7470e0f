#pragma once
// IoBackend: the three verbs of asynchronous I/O (submit, reap, wait) over io_uring, libaio or
// plain threads. A backend moves bytes and reports the kernel's answers. IoEngine handles
// splitting, short transfers, retries and errors, once for all backends.
//
// Confined to thread: the engine's, except wake().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sluice::nvme {

enum class IoOp { read, write };

// One positioned transfer. The caller owns `data` and `fd`, and keeps both valid until the
// completion with the same tag has been reaped.
struct IoRequest {
  IoOp op = IoOp::read;
  int fd = -1;
  std::byte* data = nullptr;  // not written to by IoOp::write
  std::uint32_t size_bytes = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t tag = 0;  // chosen by the caller; returned in the completion
};

// The kernel's answer: bytes moved, possibly fewer than requested, or -errno.
struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual std::string_view name() const = 0;
  // The most requests between submit and reap.
  virtual unsigned depth() const = 0;
  // Takes requests in order; returns the number taken, which is smaller (also 0) when the queue is
  // full. The kernel has the requests at the latest after the next wait(), or after the next reap()
  // that finds nothing; one system call can then submit and wait. Does not block, except where a
  // backend says so. Throws IoError when the backend itself fails.
  virtual std::size_t submit(std::span<const IoRequest> requests) = 0;
  // Writes finished requests to `completions`, in any order; returns their number. Does not block.
  // Throws IoError when the backend itself fails.
  virtual std::size_t reap(std::span<IoCompletion> completions) = 0;
  // Blocks until reap() would find a completion, or wake() was called since the last wait(). Throws
  // IoError when the backend itself fails.
  virtual void wait() = 0;
  // Ends the current or the next wait. Thread-safe, does not block.
  virtual void wake() = 0;

  // Register memory, or an open file, for cheaper requests; requests work without it too. Return
  // false when that failed, with the reason in `why_not` in one line. The caller removes each
  // registration before it frees the memory or closes the descriptor, when no request that uses the
  // memory or file is in flight. Never add memory twice; a file that is added twice is also removed
  // twice. Never remove an absent registration.
  virtual bool add_memory(std::span<std::byte> region, std::string& why_not);
  virtual void remove_memory(std::span<std::byte> /*region*/) {}
  virtual bool add_file(int fd, std::string& why_not);
  virtual void remove_file(int /*fd*/) {}
};

enum class BackendKind { automatic, io_uring, libaio, threads };

// Parses "auto", "io_uring", "libaio" or "threads". Throws InvalidArgument with the nearest valid
// name. Thread-safe.
BackendKind parse_backend(std::string_view name);

struct BackendChoice {
  std::unique_ptr<IoBackend> backend;
  // One line with the reason for each better backend that was unavailable ("libaio: io_uring:
  // io_uring_setup ..."); empty when this is the best one.
  std::string why_not_better;
};

// Whether io_uring works here: tries a no-op on a ring. On false, `why` tells what failed and what
// to change. Thread-safe.
bool io_uring_available(std::string& why);

// Whether libaio works here: tries to read an empty file. On false, `why` tells what failed and
// what to change. Thread-safe.
bool libaio_available(std::string& why);

// io_uring only: a kernel thread polls for new requests, so submitting needs no system call
// (IORING_SETUP_SQPOLL). The thread takes a core while there is work and for 10 ms after.
enum class SubmitPolling { off, on };

// Makes a backend; the caller owns it. `automatic` tries io_uring, then libaio, then threads, and
// reports the reasons. `depth`: 1 to 4096. `io_threads`: 1 to 64, for the threads backend only.
// Throws InvalidArgument with the reason when a backend requested by name is unavailable, when a
// number is out of range, or when `polling` is on and the backend is not io_uring. Throws IoError
// when the system refuses a thread. Thread-safe.
BackendChoice make_backend(BackendKind kind, unsigned depth, unsigned io_threads,
                           SubmitPolling polling = SubmitPolling::off);

}  // namespace sluice::nvme
