#pragma once
// VirtualDevice: a stand-in for a GPU in virtual time. Its memory is host memory that other code
// reaches by copies only. Copies take their bytes over a bandwidth, in both directions at once;
// compute work takes the seconds with which it is announced. Bytes are copied when a copy ends.

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/offload/device.hpp"
#include "virtual_clock.hpp"

namespace sluice::bench {

// How copies go beyond their bandwidth.
struct VirtualCopies {
  double wake_up_seconds = 0;  // from the end of a copy until a thread knows of it
  // The host memory that copies read and write, at `memory_bandwidth`; null: one that has room for
  // all.
  VirtualServer* memory = nullptr;
  double memory_bandwidth = 0;
  // Copies that are no larger go to and from tiles, which stay in the host's caches: these copies
  // use no memory.
  std::size_t cached_out_bytes = 0;
  std::size_t cached_in_bytes = 0;
};

// Thread-safe.
class VirtualDevice final : public offload::Device {
 public:
  // `clock` outlives the device. `bandwidth`: bytes per second of each direction.
  VirtualDevice(VirtualClock& clock, double bandwidth)
      : clock_(clock),
        bandwidth_(bandwidth),
        pool_(offload::Tier::device, offload::kUnlimited, offload::make_host_source()) {}

  // Before the first copy. `copies` refers to a server that outlives the device.
  void set_copies(const VirtualCopies& copies) { copies_ = copies; }
  // Announces compute work that the calling thread issues.
  void issue(double seconds) {
    const double now = clock_.now();
    MutexLock lock(mutex_);
    computed_at_ = std::max(computed_at_, now) + seconds;
    compute_seconds_ += seconds;
  }
  // Blocks until all compute work has run, as reading a result does.
  void synchronize() { clock_.wait_until(computed_at()); }
  // The end of all work so far.
  double compute_seconds() const {
    MutexLock lock(mutex_);
    return compute_seconds_;
  }

  std::string_view name() const override { return "virtual"; }
  offload::MemoryPool& memory() override { return pool_; }
  bool host_addressable() const override { return false; }
  std::unique_ptr<offload::MemorySource> make_pinned_source() override {
    return offload::make_host_source();
  }
  offload::ComputePoint mark_compute() override {
    return offload::ComputePoint(std::make_shared<double>(computed_at()));
  }
  offload::ComputePoint mark_time() override { return mark_compute(); }
  std::optional<std::chrono::steady_clock::time_point> time_of(
      const offload::ComputePoint& timed) override {
    const double at = time_at(timed);
    if (at > clock_.now()) return std::nullopt;
    return std::chrono::steady_clock::time_point(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(at)));
  }
  Ticket begin_copy_in(offload::DeviceSpan to, std::span<const std::byte> from,
                       const offload::ComputePoint& after) override {
    return begin(&VirtualDevice::in_, {to.address(), from.data(), from.size()}, to.size_bytes(),
                 after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, offload::DeviceSpan from,
                        const offload::ComputePoint& after) override {
    return begin(&VirtualDevice::out_, {to.data(), from.address(), to.size()}, from.size_bytes(),
                 after);
  }
  // Takes no time beside the other two.
  Ticket begin_copy_within(offload::DeviceSpan to, offload::DeviceSpan from,
                           const offload::ComputePoint& after) override {
    SLUICE_CHECK(to.size_bytes() == from.size_bytes(), "a copy of different sizes");
    TicketSource done;
    Ticket ticket = done.ticket();
    clock_.at(time_at(after), [to, from, ended = VirtualClock::completing(std::move(done))] {
      std::memcpy(to.address(), from.address(), to.size_bytes());
      ended();
    });
    return ticket;
  }
  // Reads and writes what it uses at an H100's bandwidth. Compute work goes on beside it: what it
  // loses is not imitated.
  Ticket begin_work(offload::DeviceWork work, const offload::ComputePoint& after) override {
    constexpr double kMemoryBandwidth = 3e12;
    double bytes = 0;
    for (const offload::DeviceSpan& use : work.uses) bytes += static_cast<double>(use.size_bytes());
    const double seconds = 2 * bytes / kMemoryBandwidth;
    const double now = clock_.now();
    TicketSource done;
    Ticket ticket = done.ticket();
    MutexLock lock(mutex_);
    worked_at_ = std::max({now, worked_at_, time_at(after)}) + seconds;
    clock_.at(worked_at_,
              [issue = std::move(work.issue), ended = VirtualClock::completing(std::move(done))] {
                issue(nullptr);
                ended();
              });
    return ticket;
  }
  offload::CopyCounters counters() const override { return {}; }

 private:
  struct Span {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t size_bytes = 0;
  };
  struct Copy {
    Span span;
    double after = 0;
    std::function<void()> ended;
  };
  // One direction: a queue of copies that wait for compute work, and one of those that do not.
  struct Link {
    std::array<std::deque<Copy>, 2> queues;
    bool busy = false;
  };

  double computed_at() const {
    MutexLock lock(mutex_);
    return computed_at_;
  }
  static double time_at(const offload::ComputePoint& point) {
    return point.event() == nullptr ? 0 : *static_cast<const double*>(point.event());
  }

  Ticket begin(Link VirtualDevice::*direction, const Span& span, std::size_t other_bytes,
               const offload::ComputePoint& after) {
    SLUICE_CHECK(span.size_bytes == other_bytes, "a copy of different sizes");
    if (span.size_bytes == 0) return {};
    TicketSource done;
    Ticket ticket = done.ticket();
    const double now = clock_.now();
    MutexLock lock(mutex_);
    Link& link = this->*direction;
    link.queues[after.event() == nullptr ? 1 : 0].push_back(
        {span, time_at(after), VirtualClock::completing(std::move(done))});
    start(link, now);
    return ticket;
  }
  // Begins the next copy of an idle link. A copy whose compute work has not run holds back its own
  // queue only.
  void start(Link& link, double now) SLUICE_REQUIRES(mutex_) {
    if (link.busy) return;
    for (std::deque<Copy>& queue : link.queues) {
      if (queue.empty()) continue;
      if (queue.front().after > now) {
        clock_.at(queue.front().after, [this, &link] { look(link); });
        continue;
      }
      link.busy = true;
      const std::size_t size_bytes = queue.front().span.size_bytes;
      const auto bytes = static_cast<double>(size_bytes);
      const std::size_t cached =
          &link == &out_ ? copies_.cached_out_bytes : copies_.cached_in_bytes;
      if (copies_.memory != nullptr && size_bytes > cached)
        clock_.load(*copies_.memory, bytes / copies_.memory_bandwidth);
      const double seconds = bytes / bandwidth_;
      clock_.at(now + seconds, [this, &link, &queue] { end(link, queue); });
      return;
    }
  }
  void look(Link& link) {
    const double now = clock_.now();
    MutexLock lock(mutex_);
    start(link, now);
  }
  void end(Link& link, std::deque<Copy>& queue) {
    const double now = clock_.now();
    std::function<void()> ended;
    {
      MutexLock lock(mutex_);
      const Span& span = queue.front().span;
      std::memcpy(span.to, span.from, span.size_bytes);
      ended = std::move(queue.front().ended);
      queue.pop_front();
      link.busy = false;
      start(link, now);
    }
    if (copies_.wake_up_seconds > 0) {
      clock_.at(now + copies_.wake_up_seconds, std::move(ended));
    } else {
      ended();
    }
  }

  VirtualClock& clock_;
  const double bandwidth_;
  VirtualCopies copies_;
  mutable Mutex mutex_;
  double computed_at_ SLUICE_GUARDED_BY(mutex_) = 0;  // when all issued work has run
  double worked_at_ SLUICE_GUARDED_BY(mutex_) = 0;    // when all works have run
  double compute_seconds_ SLUICE_GUARDED_BY(mutex_) = 0;
  Link in_ SLUICE_GUARDED_BY(mutex_);
  Link out_ SLUICE_GUARDED_BY(mutex_);
  offload::MemoryPool pool_;
};

}  // namespace sluice::bench
