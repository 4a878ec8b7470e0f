#pragma once
// LateDevice: a device without a GPU whose compute work and copies end late, by a seeded schedule.
// It finds uses of memory that nothing orders, so a missing wait fails a test on any machine.
//
// Compute work is announced by issue() and has run when the call that issued it returns, because
// LibTorch's operations on the CPU do. Only the device's answers are late: a point is reached, and
// a copy after it begins, when the schedule says so. The device therefore finds wrong orders in two
// ways.
// - By rule. Each use of memory is recorded as a range. Two uses that overlap, one of which writes,
//   must be ordered: a copy after earlier compute work by its ComputePoint, by a copy before it in
//   its queue, or by the end of another copy; compute work after a copy by the end of the copy.
//   violations() names the uses that are not.
// - By bytes. The target of a copy holds NaNs until the copy runs, and so does fresh memory. A
//   copy's source must not change, and nobody may write to its target, until the copy has run.
//
// A weakness: the device sees that a ticket has ended, not that somebody waited for it. A patient
// schedule makes up for that: it lets nothing end before every thread of the process sleeps.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "late_schedule.hpp"
#include "memory_use.hpp"
#include "sleeping_threads.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/offload/arena_source.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload::test {

// Thread-safe.
class LateDevice final : public Device {
 public:
  explicit LateDevice(const LateOptions& options)
      : schedule_(options),
        pool_(Tier::device, options.memory_bytes, std::make_unique<Source>(*this, options)),
        thread_([this] { run(); }) {}
  ~LateDevice() override {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      reach(issued_);
      changed_.notify_all();
    }
    thread_.join();
  }
  LateDevice(const LateDevice&) = delete;
  LateDevice& operator=(const LateDevice&) = delete;

  // Announces compute work before it runs, on the thread that issues it. `what` names it.
  void issue(std::string_view what, MemoryUses uses) {
    MutexLock lock(mutex_);
    const Work work{++issued_, std::string(what), std::move(uses)};
    for (const Lane& lane : lanes_) {
      for (const Copy& copy : lane) {
        if (conflict(work.uses, copy.uses))
          violation(work.name + " uses memory of a " + copy.text + " that has not ended");
      }
    }
    works_.push_back(work);
  }
  // The calling thread waits for all compute work, as it does to read a result.
  void synchronize() {
    MutexLock lock(mutex_);
    reach(issued_);
    know(issued_);
    changed_.notify_all();
  }
  // The first few violations that were found.
  std::vector<std::string> violations() const {
    MutexLock lock(mutex_);
    return violations_;
  }

  std::string_view name() const override { return "late"; }
  MemoryPool& memory() override { return pool_; }
  bool host_addressable() const override { return false; }
  std::unique_ptr<MemorySource> make_pinned_source() override {
    return offload::make_pinned_source();
  }
  ComputePoint mark_compute() override {
    MutexLock lock(mutex_);
    auto point = std::make_shared<Point>(Point{issued_, {}});
    if (issued_ <= reached_) {
      point->reached = Clock::now();
    } else {
      points_.push_back(point);
      changed_.notify_all();
    }
    return ComputePoint(std::move(point));
  }
  ComputePoint mark_time() override { return mark_compute(); }
  bool has_passed(const ComputePoint& point) override {
    if (point.event() == nullptr) return true;
    MutexLock lock(mutex_);
    const std::uint64_t index = static_cast<const Point*>(point.event())->index;
    if (index > reached_) return false;
    know(index);  // the host was told
    return true;
  }
  using Device::begin_copy_in;
  using Device::begin_copy_out;
  using Device::begin_copy_within;
  std::optional<std::chrono::steady_clock::time_point> time_of(const ComputePoint& timed) override {
    MutexLock lock(mutex_);
    return static_cast<const Point*>(timed.event())->reached;
  }
  Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from,
                       const ComputePoint& after) override {
    return begin({Direction::in, to.address(), from.data(), to.size_bytes()}, from.size(), after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from,
                        const ComputePoint& after) override {
    return begin({Direction::out, to.data(), from.address(), to.size()}, from.size_bytes(), after);
  }
  Ticket begin_copy_within(DeviceSpan to, DeviceSpan from, const ComputePoint& after) override {
    return begin({Direction::within, to.address(), from.address(), to.size_bytes()},
                 from.size_bytes(), after);
  }
  Ticket begin_work(DeviceWork work, const ComputePoint& after) override {
    MutexLock lock(mutex_);
    Copy job;
    job.span.direction = Direction::work;
    job.issue = std::move(work.issue);
    for (const DeviceSpan& use : work.uses)
      job.uses.push_back({use.address(), use.size_bytes(), /*writes=*/true});
    if (after.event() != nullptr) job.after = static_cast<const Point*>(after.event())->index;
    job.text = work.name + " after work " + std::to_string(job.after);
    Ticket ticket = job.done.ticket();
    check_order(job, lanes_.back());
    lanes_.back().push_back(std::move(job));
    changed_.notify_all();
    return ticket;
  }
  CopyCounters counters() const override {
    MutexLock lock(mutex_);
    return counters_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kPoison = 0xFF;  // NaN in every floating-point type, -1 as an integer

  // After the first `index` pieces of compute work. Guarded by the device's mutex.
  struct Point {
    std::uint64_t index = 0;
    std::optional<Clock::time_point> reached;
  };
  struct Work {
    std::uint64_t index = 0;
    std::string name;
    MemoryUses uses;
  };
  enum class Direction { in, out, within, work };
  struct Span {
    Direction direction = Direction::in;
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t size_bytes = 0;
  };
  struct Copy {
    Span span;
    std::string text;
    MemoryUses uses;
    std::uint64_t after = 0;           // index of the point that it waits for
    std::vector<std::byte> source;     // as it was when the copy was begun; empty: not compared
    std::function<void(void*)> issue;  // of a work, which has no span
    TicketSource done;
  };
  using Lane = std::deque<Copy>;

  // The arena of the device's memory.
  class Source final : public MemorySource {
   public:
    Source(LateDevice& device, const LateOptions& options)
        : device_(device),
          arena_(make_host_source(), options.memory_bytes, Tier::device, /*granule_bytes=*/512) {}
    void* allocate(std::size_t size_bytes) override {
      void* block = arena_.allocate(size_bytes);
      if (block != nullptr) std::memset(block, kPoison, size_bytes);
      return block;
    }
    void free(void* block, std::size_t size_bytes) noexcept override {
      device_.freed({block, size_bytes, /*writes=*/true});
      arena_.free(block, size_bytes);
    }
    bool wants_blocks_back() const override { return true; }
    std::uint64_t gap_bytes() const override { return arena_.gap_bytes(); }

   private:
    LateDevice& device_;
    ArenaSource arena_;
  };

  static constexpr std::size_t kCompute = LateSchedule::kEvents - 1;  // behind the lanes

  static bool conflict(const MemoryUses& some, const MemoryUses& others) {
    return std::any_of(some.begin(), some.end(), [&](const MemoryUse& use) {
      return std::any_of(others.begin(), others.end(),
                         [&](const MemoryUse& other) { return use.conflicts(other); });
    });
  }
  void violation(std::string text) SLUICE_REQUIRES(mutex_) {
    constexpr std::size_t kMost = 20;
    if (violations_.size() < kMost) violations_.push_back(std::move(text));
  }
  void freed(const MemoryUse& block) noexcept {
    MutexLock lock(mutex_);
    for (const Lane& lane : lanes_) {
      for (const Copy& copy : lane) {
        if (conflict({block}, copy.uses)) violation("memory of a " + copy.text + " is freed");
      }
    }
  }

  Copy make_copy(const Span& span, const ComputePoint& after) const {
    Copy copy;
    copy.span = span;
    copy.uses = {{span.to, span.size_bytes, true}, {span.from, span.size_bytes, false}};
    if (after.event() != nullptr) copy.after = static_cast<const Point*>(after.event())->index;
    static constexpr std::array kNames{"copy in", "copy out", "copy within"};
    copy.text = std::string(kNames[static_cast<std::size_t>(span.direction)]) + " of " +
                std::to_string(span.size_bytes) + " bytes after work " + std::to_string(copy.after);
    return copy;
  }

  Ticket begin(const Span& span, std::size_t from_bytes, const ComputePoint& after) {
    SLUICE_CHECK(span.size_bytes == from_bytes, "a copy of different sizes");
    if (from_bytes == 0) return {};
    MutexLock lock(mutex_);
    Copy copy = make_copy(span, after);
    Ticket ticket = copy.done.ticket();
    Lane& lane = lanes_[(span.direction == Direction::out ? 1 : 0) + (after.event() ? 0 : 2)];
    check_order(copy, lane);
    const bool follows = std::any_of(lane.begin(), lane.end(), [&](const Copy& before) {
      return conflict(copy.uses, before.uses);
    });
    // Bytes that an earlier copy of the queue still changes cannot be compared.
    if (!follows) {
      const auto* from = static_cast<const std::byte*>(span.from);
      copy.source.assign(from, from + span.size_bytes);
      std::memset(span.to, kPoison, span.size_bytes);
    }
    lane.push_back(std::move(copy));
    changed_.notify_all();
    return ticket;
  }

  void check_order(const Copy& copy, const Lane& own) SLUICE_REQUIRES(mutex_) {
    std::uint64_t known = std::max(known_, copy.after);
    for (const Copy& before : own) known = std::max(known, before.after);
    for (const Work& work : works_) {
      if (work.index > known && conflict(work.uses, copy.uses))
        violation("a " + copy.text + " does not wait for " + work.name + ", which is work " +
                  std::to_string(work.index));
    }
    for (const Lane& lane : lanes_) {
      if (&lane == &own) continue;
      for (const Copy& other : lane) {
        if (conflict(copy.uses, other.uses))
          violation("a " + copy.text + " uses memory of a " + other.text + " that has not ended");
      }
    }
  }

  // Compute work has run up to `index`.
  void reach(std::uint64_t index) SLUICE_REQUIRES(mutex_) {
    reached_ = std::max(reached_, index);
    const auto now = Clock::now();
    while (!points_.empty() && points_.front()->index <= reached_) {
      points_.front()->reached = now;
      points_.pop_front();
    }
  }
  // The host knows that compute work has run up to `index`.
  void know(std::uint64_t index) SLUICE_REQUIRES(mutex_) {
    known_ = std::max(known_, index);
    while (!works_.empty() && works_.front().index <= known_) works_.pop_front();
  }

  std::vector<std::size_t> possible_events() const SLUICE_REQUIRES(mutex_) {
    std::vector<std::size_t> possible;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      if (!lanes_[i].empty() && lanes_[i].front().after <= reached_) possible.push_back(i);
    }
    if (!points_.empty() && !(schedule_.compute_last() && !possible.empty()))
      possible.push_back(kCompute);
    return possible;
  }

  void run() {
    const long self = ::syscall(SYS_gettid);
    for (;;) {
      bool patient = false;
      {
        MutexLock lock(mutex_);
        while (!stopping_ && possible_events().empty()) changed_.wait(mutex_);
        if (possible_events().empty()) return;
        patient = !stopping_ && schedule_.waits_for_sleep();
      }
      if (patient) wait_for_sleep(self);
      happen();
    }
  }
  // Gives up after a while: a thread may compute for long, or poll.
  void wait_for_sleep(long self) {
    const auto end =
        Clock::now() + std::chrono::milliseconds(schedule_.compute_last() ? 10'000 : 20);
    for (int asleep = 0; asleep < 2 && Clock::now() < end;) {
      asleep = sluice::test::others_sleep(self) ? asleep + 1 : 0;
      std::this_thread::yield();
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
  }
  void happen() {
    TicketSource done;
    std::exception_ptr error;
    {
      MutexLock lock(mutex_);
      const std::vector<std::size_t> possible = possible_events();
      if (possible.empty()) return;
      const std::size_t event = schedule_.choose(possible);
      if (event == kCompute) {
        reach(points_.front()->index);
        return;
      }
      Copy copy = std::move(lanes_[event].front());
      lanes_[event].pop_front();
      if (copy.issue) {
        error = error_of([&] { copy.issue(nullptr); });
      } else {
        run_copy(copy);
      }
      know(copy.after);
      done = std::move(copy.done);
    }
    done.complete(error);
  }
  void run_copy(const Copy& copy) SLUICE_REQUIRES(mutex_) {
    const auto begin = Clock::now();
    const Span& span = copy.span;
    if (!copy.source.empty()) {
      if (std::memcmp(span.from, copy.source.data(), span.size_bytes) != 0)
        violation("the source of a " + copy.text + " has changed before it ran");
      const auto* to = static_cast<const std::byte*>(span.to);
      if (std::any_of(to, to + span.size_bytes,
                      [](std::byte b) { return b != std::byte{kPoison}; }))
        violation("the target of a " + copy.text + " was written before it ran");
    }
    std::memcpy(span.to, span.from, span.size_bytes);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (span.direction == Direction::in) {
      counters_.in_bytes += span.size_bytes;
      counters_.in_busy_seconds += seconds;
    } else if (span.direction == Direction::out) {
      counters_.out_bytes += span.size_bytes;
      counters_.out_busy_seconds += seconds;
    }
  }

  LateSchedule schedule_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t issued_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t reached_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t known_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Point>> points_ SLUICE_GUARDED_BY(mutex_);  // not reached; shared
  std::deque<Work> works_ SLUICE_GUARDED_BY(mutex_);                     // not known to have run
  // In and out, of copies that wait for a point and of those that wait for nothing; works.
  std::array<Lane, 5> lanes_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ SLUICE_GUARDED_BY(mutex_);
  CopyCounters counters_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  MemoryPool pool_;
  std::thread thread_;  // last: it starts when all it uses is there
};

}  // namespace sluice::offload::test
