#include "sluice/base/executor.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"

#if SLUICE_HAVE_TBB
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace sluice {

namespace {

// One loop: chunks are claimed by index, errors kept with the lowest index.
struct Loop {
  std::size_t count;
  const std::function<void(std::size_t)>* body;
  std::atomic<std::size_t> next{0};
  Mutex mutex;
  std::size_t error_index SLUICE_GUARDED_BY(mutex) = SIZE_MAX;
  std::exception_ptr error SLUICE_GUARDED_BY(mutex);

  void run_one(std::size_t index) {
    try {
      (*body)(index);
    } catch (...) {
      MutexLock lock(mutex);
      if (index < error_index) {
        error_index = index;
        error = std::current_exception();
      }
    }
  }
  void run() {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) run_one(i);
  }
  void rethrow() {
    MutexLock lock(mutex);
    if (error) std::rethrow_exception(error);
  }
};

// Threads that sleep between loops. Thread-safe; loops of several callers run one after the other.
class PlainExecutor final : public Executor {
 public:
  explicit PlainExecutor(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }
  ~PlainExecutor() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
  }
  std::string_view name() const override { return "threads"; }
  int threads() const override { return threads_; }

  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    Loop loop{.count = count, .body = &body, .mutex = {}, .error = {}};
    if (count <= 1 || workers_.empty()) {
      loop.run();
      return loop.rethrow();
    }
    MutexLock one_caller(caller_mutex_);
    {
      MutexLock lock(mutex_);
      loop_ = &loop;
      ++generation_;
      changed_.notify_all();
    }
    loop.run();
    {
      MutexLock lock(mutex_);
      loop_ = nullptr;
      while (inside_ > 0) changed_.wait(mutex_);
    }
    loop.rethrow();
  }

 private:
  void work() {
    std::uint64_t seen = 0;
    for (;;) {
      Loop* loop = nullptr;
      {
        MutexLock lock(mutex_);
        while (!stopping_ && (loop_ == nullptr || generation_ == seen)) changed_.wait(mutex_);
        if (stopping_) return;
        seen = generation_;
        loop = loop_;
        ++inside_;
      }
      loop->run();
      MutexLock lock(mutex_);
      if (--inside_ == 0) changed_.notify_all();
    }
  }

  const int threads_;
  Mutex caller_mutex_;
  Mutex mutex_;
  CondVar changed_;
  Loop* loop_ SLUICE_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t generation_ SLUICE_GUARDED_BY(mutex_) = 0;
  int inside_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> workers_;
};

#if SLUICE_HAVE_TBB
class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int threads) : threads_(threads), arena_(threads) {}
  std::string_view name() const override { return "tbb"; }
  int threads() const override { return threads_; }
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    Loop loop{.count = count, .body = &body, .mutex = {}, .error = {}};
    if (count <= 1 || threads_ == 1) {
      loop.run();
    } else {
      arena_.execute([&] {
        oneapi::tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) { loop.run_one(i); });
      });
    }
    loop.rethrow();
  }

 private:
  const int threads_;
  oneapi::tbb::task_arena arena_;
};
#endif

}  // namespace

std::unique_ptr<Executor> make_executor(int threads, ExecutorKind kind) {
  SLUICE_CHECK(threads >= 1, "an executor needs at least 1 thread, not " + std::to_string(threads));
#if SLUICE_HAVE_TBB
  if (kind != ExecutorKind::plain_threads) return std::make_unique<TbbExecutor>(threads);
#else
  SLUICE_CHECK(kind != ExecutorKind::tbb, "oneTBB was asked for, but this build has none");
#endif
  return std::make_unique<PlainExecutor>(threads);
}

}  // namespace sluice
