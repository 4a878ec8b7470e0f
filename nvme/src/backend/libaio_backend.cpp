// IoBackend over the kernel's older asynchronous I/O (libaio), for machines that deny io_uring.
//
// Only direct I/O is asynchronous: the kernel does a transfer through the page cache inside
// submit(), which then blocks.

#include <fcntl.h>
#include <libaio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>

#include "backend/backends.hpp"
#include "backend/fixed_queue.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/log.hpp"

namespace sluice::nvme {

namespace {

constexpr std::size_t kReapBatch = 64;

std::string first_word_of(const char* path) {
  std::string word = "unknown";
  std::ifstream(path) >> word;
  return word;
}

std::string explain_error(int error_number) {
  if (error_number == EPERM || error_number == EACCES) {
    return "a seccomp filter denies it; run with a profile that allows io_setup, io_submit, "
           "io_getevents and io_destroy";
  }
  if (error_number == ENOSYS) {
    return "this kernel was built without it (CONFIG_AIO), or a seccomp filter says so";
  }
  return "";
}

std::string explain_setup_error(int error_number) {
  if (error_number != EAGAIN) return explain_error(error_number);
  return "the queues of all processes together would be longer than the sysctl fs.aio-max-nr, " +
         first_word_of("/proc/sys/fs/aio-max-nr") + "; fs.aio-nr, the sum now, is " +
         first_word_of("/proc/sys/fs/aio-nr") + "; raise fs.aio-max-nr or lower the depth";
}

// Owns one kernel context. Thread-compatible: callers synchronise.
class AioContext {
 public:
  explicit AioContext(unsigned depth) {
    const int result = ::io_setup(static_cast<int>(depth), &context_);
    if (result < 0) {
      throw IoError(-result, "io_setup", "libaio", 0, 0, explain_setup_error(-result));
    }
  }
  // Waits for requests in flight, and about 30 ms more for the kernel (an RCU grace period).
  ~AioContext() {
    const int result = ::io_destroy(context_);
    if (result < 0) log(LogLevel::error, std::string("io_destroy: ") + std::strerror(-result));
  }
  AioContext(const AioContext&) = delete;
  AioContext& operator=(const AioContext&) = delete;

  io_context_t get() const { return context_; }

 private:
  io_context_t context_ = nullptr;
};

// Completions and wakes signal one eventfd. A wait is one read of the eventfd, on every kernel with
// AIO. A pending IOCB_CMD_POLL would end io_getevents too, but doubles the cost of a wake, takes a
// place in the queue and needs Linux 4.18.
//
// Confined to thread: the caller's, except wake().
class LibaioBackend final : public IoBackend {
 public:
  explicit LibaioBackend(unsigned depth)
      : depth_(depth),
        event_fd_(SLUICE_SYSCALL(::eventfd(0, EFD_CLOEXEC), "eventfd")),
        finished_(depth),
        context_(depth) {
    for (std::size_t i = 0; i < kSubmitBatch; ++i) prepared_pointers_[i] = &prepared_[i];
  }

  std::string_view name() const override { return "libaio"; }
  unsigned depth() const override { return depth_; }

  std::size_t submit(std::span<const IoRequest> requests) override {
    std::size_t taken = 0;
    while (taken < requests.size() && in_flight_ < depth_) {
      const std::size_t room = std::min(requests.size() - taken, std::size_t{depth_ - in_flight_});
      const int result = submit_once(first_batch(requests.subspan(taken, room)));
      if (result == -EAGAIN) break;
      if (result < 0) {
        // The kernel took nothing because of the first request (for example a closed descriptor).
        // The request completes with that error, as with the other backends.
        finished_.push(IoCompletion{requests[taken].tag, result});
      }
      // The kernel takes fewer requests when a later one is bad or its queue is full; the next
      // submission tells which.
      const unsigned moved = result < 0 ? 1 : static_cast<unsigned>(result);
      taken += moved;
      in_flight_ += moved;
    }
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> completions) override {
    while (finished_.size() < completions.size() && fetch() > 0) {
    }
    const std::size_t count = std::min(completions.size(), finished_.size());
    for (std::size_t i = 0; i < count; ++i) completions[i] = finished_.pop();
    in_flight_ -= static_cast<unsigned>(count);
    return count;
  }

  void wait() override {
    // The kernel queues a completion before it signals, and wake() sets its flag before it signals.
    // So after a read there is something to find, or it was reaped earlier and the next read
    // blocks.
    while (!woken_ && finished_.empty() && fetch() == 0) {
      std::uint64_t signals = 0;
      if (::read(event_fd_.get(), &signals, sizeof(signals)) < 0 && errno != EINTR) {
        throw IoError(errno, "read", "eventfd");
      }
    }
    woken_ = false;
  }

  void wake() override {
    woken_ = true;
    const std::uint64_t one = 1;
    // Blocks only at 2^64 - 2 unread signals.
    while (::write(event_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  // The first request alone when it is large, else the small ones before the first large request.
  static std::span<const IoRequest> first_batch(std::span<const IoRequest> requests) {
    const auto most = requests.first(std::min(requests.size(), std::size_t{kSubmitBatch}));
    const auto large = std::find_if(most.begin(), most.end(), [](const IoRequest& request) {
      return request.size_bytes >= kAloneBytes;
    });
    return most.first(std::max<std::size_t>(1, static_cast<std::size_t>(large - most.begin())));
  }

  // The number of first requests that the kernel took, at least one, or -errno of the first.
  int submit_once(std::span<const IoRequest> requests) {
    for (std::size_t i = 0; i < requests.size(); ++i) prepare(prepared_[i], requests[i]);
    // Blocks until the bytes are copied for files opened without O_DIRECT.
    return ::io_submit(context_.get(), static_cast<long>(requests.size()),
                       prepared_pointers_.data());
  }

  void prepare(iocb& prepared, const IoRequest& request) const {
    const auto offset = static_cast<long long>(request.offset_bytes);
    if (request.op == IoOp::read) {
      ::io_prep_pread(&prepared, request.fd, request.data, request.size_bytes, offset);
    } else {
      ::io_prep_pwrite(&prepared, request.fd, request.data, request.size_bytes, offset);
    }
    ::io_set_eventfd(&prepared, event_fd_.get());
    prepared.data = std::bit_cast<void*>(request.tag);
  }

  // Takes finished requests from the kernel, up to a batch; returns their number. An empty queue
  // costs no system call: libaio reads the shared memory.
  std::size_t fetch() {
    std::array<io_event, kReapBatch> events;
    timespec no_time{};
    int result = 0;
    do {  // after a signal there may be finished requests that the eventfd tells of no more
      result = ::io_getevents(context_.get(), 0, kReapBatch, events.data(), &no_time);
    } while (result == -EINTR);
    if (result < 0) {
      throw IoError(-result, "io_getevents", "libaio", 0, 0, explain_error(-result));
    }
    const auto count = static_cast<std::size_t>(result);
    for (std::size_t i = 0; i < count; ++i) {
      finished_.push(IoCompletion{std::bit_cast<std::uint64_t>(events[i].data),
                                  static_cast<std::int64_t>(events[i].res)});
    }
    return count;
  }

  const unsigned depth_;
  UniqueFd event_fd_;
  FixedQueue<IoCompletion> finished_;  // fetched or failed in submit(), not yet reaped
  std::array<iocb, kSubmitBatch> prepared_{};
  std::array<iocb*, kSubmitBatch> prepared_pointers_{};
  unsigned in_flight_ = 0;  // submitted, not yet reaped
  std::atomic<bool> woken_{false};
  AioContext context_;  // last member, destroyed first: the kernel signals until then
};

}  // namespace

std::unique_ptr<IoBackend> make_libaio_backend(unsigned depth) {
  return std::make_unique<LibaioBackend>(depth);
}

bool libaio_available(std::string& why) {
  try {
    LibaioBackend backend(1);
    const UniqueFd empty_file(
        SLUICE_SYSCALL(::memfd_create("sluice-probe", MFD_CLOEXEC), "memfd_create"));
    std::byte byte{};
    const IoRequest read{IoOp::read, empty_file.get(), &byte, 1, 0, 0};
    IoCompletion completion{0, -EAGAIN};
    if (backend.submit({&read, 1}) == 1) {
      while (backend.reap({&completion, 1}) == 0) backend.wait();
    }
    if (completion.result < 0) {
      const auto error_number = static_cast<int>(-completion.result);
      throw IoError(error_number, "io_submit", "libaio", 0, 0, explain_error(error_number));
    }
    return true;
  } catch (const IoError& error) {
    why = error.what();
    return false;
  }
}

}  // namespace sluice::nvme
