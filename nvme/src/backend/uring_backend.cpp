// IoBackend over io_uring (liburing 2.3).
//
// The constructor sets up the ring on any thread, disabled. The first verb enables the ring; its
// caller becomes the only submitting task that IORING_SETUP_SINGLE_ISSUER allows.

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "backend/backends.hpp"
#include "backend/uring_tables.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/log.hpp"

namespace sluice::nvme {

namespace {

// Tag of the poll request that wake() completes. The engine's tags are small numbers.
constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

// How long the kernel's polling thread polls after the last request.
constexpr unsigned kPollIdleMilliseconds = 10;

// The most calls in a row that fail only for now. With a pause after each, a kernel without memory
// has some seconds. A signal ends a wait that is no failure, as of a profiler a thousand times a
// second: these calls may be of a drive that needs many minutes.
constexpr unsigned kMostRefusals = 2000;
constexpr std::chrono::milliseconds kRefusalPause{1};
constexpr unsigned kMostInterruptions = 1'000'000;

std::string explain_denied() {
  int disabled = 0;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  if (disabled != 0) {
    return "the sysctl kernel.io_uring_disabled is " + std::to_string(disabled) +
           "; set it to 0 to allow io_uring";
  }
  return "a seccomp filter denies it, as container runtimes do by default; run with a profile that "
         "allows io_uring_setup, io_uring_enter and io_uring_register, or choose another backend";
}

std::string explain_setup_error(int error_number) {
  if (error_number == EPERM || error_number == EACCES) return explain_denied();
  if (error_number == ENOSYS) {
    return "this kernel has no io_uring (Linux 5.6 or later is needed), or a seccomp filter says "
           "so";
  }
  if (error_number == ENOMEM) {
    rlimit limit{};
    ::getrlimit(RLIMIT_MEMLOCK, &limit);
    const std::string shown =
        limit.rlim_cur == RLIM_INFINITY ? "unlimited" : format_bytes(limit.rlim_cur);
    return "memory for the rings could not be locked; RLIMIT_MEMLOCK is " + shown +
           ", raise it (ulimit -l) or lower the depth";
  }
  return "";
}

// Owns one ring. Tries the cheapest completion mode first; an older kernel answers an unknown flag
// with EINVAL. Thread-compatible: callers synchronise.
class Ring {
 public:
  Ring(unsigned entries, SubmitPolling polling) {
    if (polling == SubmitPolling::on) {
      io_uring_params params{};
      params.flags = IORING_SETUP_SQPOLL;
      params.sq_thread_idle = kPollIdleMilliseconds;
      const int polled = ::io_uring_queue_init_params(entries, &ring_, &params);
      if (polled < 0) {
        throw IoError(-polled, "io_uring_setup with SQPOLL", "io_uring", 0, 0,
                      explain_setup_error(-polled));
      }
      return;
    }
    // With TASKRUN_FLAG, a peek sees completions that wait for this task to enter the kernel.
    constexpr std::array<unsigned, 4> kFlags{
        IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG,  // Linux 6.1
        IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG,                          // Linux 6.0
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,  // Linux 5.19
        0};
    int result = -EINVAL;
    for (std::size_t i = 0; i < kFlags.size() && result == -EINVAL; ++i) {
      flags_ = kFlags[i];
      result = ::io_uring_queue_init(entries, &ring_, flags_);
    }
    if (result < 0) {
      throw IoError(-result, "io_uring_setup", "io_uring", 0, 0, explain_setup_error(-result));
    }
  }
  ~Ring() { ::io_uring_queue_exit(&ring_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  io_uring* get() { return &ring_; }

  // Binds the ring to the calling thread, once.
  void enable() {
    if (enabled_) return;
    if ((flags_ & IORING_SETUP_R_DISABLED) != 0) {
      // By system call: the shared library of liburing 2.3 does not export io_uring_enable_rings.
      if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr,
                    0) < 0) {
        const int error_number = errno;
        throw IoError(error_number, "io_uring_register", "io_uring", 0, 0,
                      explain_setup_error(error_number));
      }
    }
    enabled_ = true;
  }

 private:
  io_uring ring_{};
  unsigned flags_ = 0;
  bool enabled_ = false;
};

// Whether a submission failed only for now: entries that were not submitted stay in the submission
// queue for the next attempt.
bool try_again_later(int result) {
  return result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

// Confined to thread: the first that calls a verb, except wake(). Any thread may destroy the
// backend when nothing is in flight.
class UringBackend final : public IoBackend {
 public:
  UringBackend(unsigned depth, SubmitPolling polling)
      : depth_(depth),
        wake_fd_(SLUICE_SYSCALL(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
        ring_(depth + 1, polling) {}  // one more entry for the poll of wake_fd_

  ~UringBackend() override {
    // The caller may free its buffers afterwards. With a single issuer, only the thread that
    // enabled the ring can drain it.
    std::array<IoCompletion, 16> dropped;
    try {
      while (in_flight_ > 0) {
        wait();
        while (reap(dropped) > 0) {
        }
      }
    } catch (const std::exception& error) {
      log(LogLevel::error,
          std::string("io_uring destroyed with requests in flight: ") + error.what());
    }
  }

  std::string_view name() const override { return "io_uring"; }
  unsigned depth() const override { return depth_; }

  std::size_t submit(std::span<const IoRequest> requests) override {
    ring_.enable();
    std::size_t taken = 0;
    while (taken < requests.size() && in_flight_ < depth_) {
      io_uring_sqe* sqe = ::io_uring_get_sqe(ring_.get());
      if (sqe == nullptr) break;
      const IoRequest& request = requests[taken++];
      prepare(*sqe, request);
      ++in_flight_;
      const bool alone = request.size_bytes >= kAloneBytes;
      if (alone || ::io_uring_sq_ready(ring_.get()) >= kSubmitBatch) flush();
    }
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> completions) override {
    ring_.enable();
    std::size_t count = take_completions(completions);
    if (count == 0 && ::io_uring_sq_ready(ring_.get()) > 0) {
      flush();
      count = take_completions(completions);
    }
    return count;
  }

  void wait() override {
    ring_.enable();
    while (!woken_) {
      io_uring_cqe* cqe = nullptr;
      if (::io_uring_sq_ready(ring_.get()) == 0 && ::io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
        if (cqe->user_data != kWakeTag) return;
        take_wake(*cqe);
        break;
      }
      arm_wake();
      note_result(::io_uring_submit_and_wait(ring_.get(), 1));
    }
    woken_ = false;
  }

  bool add_memory(std::span<std::byte> region, std::string& why_not) override {
    ring_.enable();
    return memory_.add(*ring_.get(), region, why_not);
  }
  void remove_memory(std::span<std::byte> region) override { memory_.remove(*ring_.get(), region); }
  bool add_file(int fd, std::string& why_not) override {
    ring_.enable();
    return files_.add(*ring_.get(), fd, why_not);
  }
  void remove_file(int fd) override { files_.remove(*ring_.get(), fd); }

  void wake() override {
    const std::uint64_t one = 1;
    // EAGAIN means that the counter is full: a wake is pending already.
    while (::write(wake_fd_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

 private:
  void prepare(io_uring_sqe& sqe, const IoRequest& request) const {
    assert(request.tag != kWakeTag);
    const std::optional<int> file = files_.slot_of(request.fd);
    const std::optional<std::uint16_t> memory = memory_.slot_of(request.data, request.size_bytes);
    const auto opcode = request.op == IoOp::read
                            ? (memory ? IORING_OP_READ_FIXED : IORING_OP_READ)
                            : (memory ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE);
    ::io_uring_prep_rw(opcode, &sqe, file.value_or(request.fd), request.data, request.size_bytes,
                       request.offset_bytes);
    if (memory) sqe.buf_index = *memory;
    if (file) sqe.flags |= IOSQE_FIXED_FILE;
    sqe.user_data = request.tag;
  }

  std::size_t take_completions(std::span<IoCompletion> completions) {
    std::size_t count = 0;
    io_uring_cqe* cqe = nullptr;
    while (count < completions.size() && ::io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
      if (cqe->user_data == kWakeTag) {
        take_wake(*cqe);
        woken_ = true;  // a wake that no wait has seen ends the next one
        continue;
      }
      completions[count++] = IoCompletion{cqe->user_data, cqe->res};
      ::io_uring_cqe_seen(ring_.get(), cqe);
      --in_flight_;
    }
    return count;
  }

  void flush() { note_result(::io_uring_submit(ring_.get())); }

  // Takes the result of a call that enters the kernel. Throws for one that does not get better.
  void note_result(int result) {
    if (result >= 0) {
      failures_ = 0;
      return;
    }
    if (!try_again_later(result))
      throw IoError(-result, "io_uring_enter", "io_uring", 0, 0, explain_setup_error(-result));
    const unsigned most = result == -EINTR ? kMostInterruptions : kMostRefusals;
    if (++failures_ > most) {
      throw IoError(-result, "io_uring_enter", "io_uring", 0, 0,
                    "it failed " + std::to_string(most) +
                        " times in a row; free memory of the system, or choose another backend");
    }
    if (result != -EINTR) std::this_thread::sleep_for(kRefusalPause);
  }

  // A poll instead of a read: destroying the ring while a poll is pending writes to no memory.
  void arm_wake() {
    if (wake_armed_) return;
    // At most depth of the depth + 1 entries are requests in flight, but a polling kernel may not
    // have taken the last entries yet.
    io_uring_sqe* sqe = ::io_uring_get_sqe(ring_.get());
    while (sqe == nullptr) {
      flush();
      ::io_uring_sqring_wait(ring_.get());
      sqe = ::io_uring_get_sqe(ring_.get());
    }
    ::io_uring_prep_poll_add(sqe, wake_fd_.get(), POLLIN);
    sqe->user_data = kWakeTag;
    wake_armed_ = true;
  }

  void take_wake(io_uring_cqe& cqe) {
    ::io_uring_cqe_seen(ring_.get(), &cqe);
    std::uint64_t count = 0;
    while (::read(wake_fd_.get(), &count, sizeof(count)) < 0 && errno == EINTR) {
    }
    wake_armed_ = false;
  }

  const unsigned depth_;
  UniqueFd wake_fd_;
  Ring ring_;
  RegisteredMemory memory_;
  RegisteredFiles files_;
  unsigned in_flight_ = 0;  // submitted, not yet reaped
  unsigned failures_ = 0;   // calls in a row that failed only for now
  bool wake_armed_ = false;
  bool woken_ = false;
};

}  // namespace

std::unique_ptr<IoBackend> make_uring_backend(unsigned depth, SubmitPolling polling) {
  return std::make_unique<UringBackend>(depth, polling);
}

bool io_uring_available(std::string& why) {
  try {
    Ring ring(1, SubmitPolling::off);
    ring.enable();
    ::io_uring_prep_nop(::io_uring_get_sqe(ring.get()));
    int result = ::io_uring_submit_and_wait(ring.get(), 1);
    io_uring_cqe* cqe = nullptr;
    if (result >= 0) result = ::io_uring_peek_cqe(ring.get(), &cqe);
    if (result >= 0) result = cqe->res;
    if (result < 0) {
      throw IoError(-result, "io_uring_enter", "io_uring", 0, 0, explain_setup_error(-result));
    }
    return true;
  } catch (const IoError& error) {
    why = error.what();
    return false;
  }
}

}  // namespace sluice::nvme
