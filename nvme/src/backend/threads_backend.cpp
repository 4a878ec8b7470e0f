// IoBackend over plain threads: each thread takes requests from a queue and does one pread or
// pwrite for each request.

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/backends.hpp"
#include "backend/fixed_queue.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::nvme {

namespace {

std::int64_t transfer_once(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset_bytes);
  const ssize_t moved = request.op == IoOp::read
                            ? ::pread(request.fd, request.data, request.size_bytes, offset)
                            : ::pwrite(request.fd, request.data, request.size_bytes, offset);
  return moved < 0 ? -errno : moved;
}

// Confined to thread: the caller's, except wake().
class ThreadsBackend final : public IoBackend {
 public:
  ThreadsBackend(unsigned depth, unsigned io_threads)
      : depth_(depth), requests_(depth), completions_(depth) {
    try {
      for (unsigned i = 0; i < io_threads; ++i) {
        threads_.emplace_back([this] { work(); });
        ::pthread_setname_np(threads_.back().native_handle(),
                             ("sluice-io-" + std::to_string(i)).c_str());
      }
    } catch (const std::system_error& error) {
      const std::size_t started = threads_.size();
      stop();  // joins the started threads before the members are destroyed
      throw IoError(error.code().value(), "start a thread", "threads", 0, 0,
                    std::to_string(started) + " of " + std::to_string(io_threads) +
                        " were started; ask for fewer, or raise the limit of processes or of "
                        "memory (ulimit -u, ulimit -v)");
    } catch (...) {
      stop();
      throw;
    }
  }
  // Finishes the submitted requests, then joins the threads.
  ~ThreadsBackend() override { stop(); }

  std::string_view name() const override { return "threads"; }
  unsigned depth() const override { return depth_; }

  std::size_t submit(std::span<const IoRequest> requests) override {
    std::size_t taken = 0;
    {
      MutexLock lock(mutex_);
      while (taken < requests.size() && in_flight_ < depth_) {
        requests_.push(requests[taken++]);
        ++in_flight_;
      }
    }
    for (std::size_t i = 0; i < std::min(taken, threads_.size()); ++i) work_changed_.notify_one();
    return taken;
  }

  std::size_t reap(std::span<IoCompletion> completions) override {
    MutexLock lock(mutex_);
    const std::size_t count = std::min(completions.size(), completions_.size());
    for (std::size_t i = 0; i < count; ++i) completions[i] = completions_.pop();
    in_flight_ -= static_cast<unsigned>(count);
    return count;
  }

  void wait() override {
    MutexLock lock(mutex_);
    while (completions_.empty() && !woken_) completions_changed_.wait(mutex_);
    woken_ = false;
  }

  void wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    completions_changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      IoRequest request;
      {
        MutexLock lock(mutex_);
        while (requests_.empty() && !stopping_) work_changed_.wait(mutex_);
        if (requests_.empty()) return;
        request = requests_.pop();
      }
      const IoCompletion completion{request.tag, transfer_once(request)};
      MutexLock lock(mutex_);
      completions_.push(completion);
      completions_changed_.notify_one();
    }
  }

  void stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    work_changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const unsigned depth_;

  Mutex mutex_;
  CondVar work_changed_;
  CondVar completions_changed_;
  FixedQueue<IoRequest> requests_ SLUICE_GUARDED_BY(mutex_);
  FixedQueue<IoCompletion> completions_ SLUICE_GUARDED_BY(mutex_);
  unsigned in_flight_ SLUICE_GUARDED_BY(mutex_) = 0;  // submitted, not yet reaped
  bool woken_ SLUICE_GUARDED_BY(mutex_) = false;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoBackend> make_threads_backend(unsigned depth, unsigned io_threads) {
  return std::make_unique<ThreadsBackend>(depth, io_threads);
}

}  // namespace sluice::nvme
