#include "executors.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "loop.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"

#if SLUICE_HAVE_TBB
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_scheduler_observer.h>
#endif

namespace sluice {

namespace {

// The callers whose loops run or wait. Thread-safe.
class Callers {
 public:
  // One caller, until the end of the scope.
  class Scope {
   public:
    explicit Scope(Callers& callers) : callers_(callers) { ++callers_.count_; }
    ~Scope() { --callers_.count_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Callers& callers_;
  };
  bool several() const { return count_ > 1; }

 private:
  std::atomic<int> count_{0};
};

// Plain threads that sleep between loops. Thread-safe: loops of several callers run one after the
// other.
class PlainExecutor final : public Executor {
 public:
  PlainExecutor(const Numa& numa, int threads, ThreadPriority priority)
      : numa_(numa), threads_(threads), priority_(priority) {
    try {
      for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      const std::size_t started = workers_.size();
      stop();
      throw Error("the system refuses a thread (" + std::string(error.what()) +
                  "): " + std::to_string(started) + " of " + std::to_string(threads - 1) +
                  " were started; ask for fewer, or raise the limit of processes or of memory");
    }
  }
  ~PlainExecutor() override { stop(); }
  std::string_view name() const override { return "threads"; }
  int threads() const override { return threads_; }
  bool is_contended() const override { return callers_.several(); }

  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    Loop loop(count, body);
    run(loop);
  }
  void for_each_near(std::size_t count, const std::function<const void*(std::size_t)>& memory_of,
                     const std::function<void(std::size_t)>& body) override {
    if (numa_.nodes() == 1) return for_each(count, body);
    NearLoop loop(numa_, count, memory_of, body);
    run(loop);
  }

 private:
  void run(Loop& loop) {
    const Callers::Scope scope(callers_);
    if (loop.count() <= 1 || workers_.empty()) {
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
  void stop() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    for (std::thread& worker : workers_) worker.join();
  }
  void work() {
    take_priority(priority_);
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

  const Numa& numa_;
  const int threads_;
  const ThreadPriority priority_;
  Callers callers_;
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
// Gives oneTBB's threads the priority when they come to an arena. They keep it when they go on to
// another one.
class BackgroundWorkers final : public oneapi::tbb::task_scheduler_observer {
 public:
  explicit BackgroundWorkers(oneapi::tbb::task_arena& arena)
      : oneapi::tbb::task_scheduler_observer(arena) {
    observe(true);
  }
  ~BackgroundWorkers() override { observe(false); }
  BackgroundWorkers(const BackgroundWorkers&) = delete;
  BackgroundWorkers& operator=(const BackgroundWorkers&) = delete;

  void on_scheduler_entry(bool is_worker) override {
    if (is_worker) take_priority(ThreadPriority::background);
  }
};

class TbbExecutor final : public Executor {
 public:
  TbbExecutor(const Numa& numa, int threads, ThreadPriority priority)
      : numa_(numa), threads_(threads), arena_(threads) {
    using oneapi::tbb::global_control;
    const auto wanted = static_cast<std::size_t>(threads);
    if (wanted > global_control::active_value(global_control::max_allowed_parallelism))
      more_than_cores_.emplace(global_control::max_allowed_parallelism, wanted);
    if (priority == ThreadPriority::background) background_.emplace(arena_);
  }
  std::string_view name() const override { return "tbb"; }
  int threads() const override { return threads_; }
  bool is_contended() const override { return callers_.several(); }
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    const Callers::Scope scope(callers_);
    Loop loop(count, body);
    if (count <= 1 || threads_ == 1) {
      loop.run();
    } else {
      arena_.execute([&] {
        oneapi::tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) { loop.run_one(i); });
      });
    }
    loop.rethrow();
  }
  void for_each_near(std::size_t count, const std::function<const void*(std::size_t)>& memory_of,
                     const std::function<void(std::size_t)>& body) override {
    if (numa_.nodes() == 1) return for_each(count, body);
    const Callers::Scope scope(callers_);
    NearLoop loop(numa_, count, memory_of, body);
    arena_.execute([&] {
      // The loop chooses the bodies: oneTBB only supplies threads, one for each call.
      oneapi::tbb::parallel_for(
          0, threads_, [&](int) { loop.run(); }, oneapi::tbb::simple_partitioner());
    });
    loop.rethrow();
  }

 private:
  const Numa& numa_;
  const int threads_;
  Callers callers_;
  std::optional<oneapi::tbb::global_control> more_than_cores_;
  oneapi::tbb::task_arena arena_;
  std::optional<BackgroundWorkers> background_;
};
#endif

}  // namespace

std::unique_ptr<Executor> make_executor_on(const Numa& numa, int threads, ExecutorKind kind,
                                           ThreadPriority priority) {
  SLUICE_CHECK(threads >= 1, "an executor needs at least 1 thread, not " + std::to_string(threads));
#if SLUICE_HAVE_TBB
  if (kind != ExecutorKind::plain_threads)
    return std::make_unique<TbbExecutor>(numa, threads, priority);
#else
  SLUICE_CHECK(kind != ExecutorKind::tbb, "oneTBB was asked for, but this build has none");
#endif
  return std::make_unique<PlainExecutor>(numa, threads, priority);
}

std::unique_ptr<Executor> make_executor(int threads, ExecutorKind kind, ThreadPriority priority) {
  return make_executor_on(machine_numa(), threads, kind, priority);
}

}  // namespace sluice
