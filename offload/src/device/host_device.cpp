#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "device/check_copy.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {

namespace {

using Clock = std::chrono::steady_clock;

// Device memory is a host pool, the copy queue a thread. Thread-safe.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options)
      : bandwidth_bytes_per_second_(options.bandwidth_bytes_per_second),
        in_row_(options.trace, "h2d"),
        out_row_(options.trace, "d2h"),
        work_row_(options.trace, "work"),
        pool_(Tier::device, options.memory_bytes, make_host_source()),
        copies_("device-copy") {
    SLUICE_CHECK(!bandwidth_bytes_per_second_ || *bandwidth_bytes_per_second_ > 0,
                 "the host device's bandwidth must be above 0 bytes per second, not " +
                     std::to_string(bandwidth_bytes_per_second_.value_or(0)));
  }

  std::string_view name() const override { return "host"; }
  MemoryPool& memory() override { return pool_; }
  bool host_addressable() const override { return true; }
  std::unique_ptr<MemorySource> make_pinned_source() override {
    return offload::make_pinned_source();
  }

  // Compute work has run when the call that issued it returns.
  ComputePoint mark_compute() override { return {}; }
  ComputePoint mark_time() override {
    return ComputePoint(std::make_shared<Clock::time_point>(Clock::now()));
  }
  std::optional<Clock::time_point> time_of(const ComputePoint& timed) override {
    SLUICE_CHECK(timed.event() != nullptr, "time_of() needs a point of mark_time()");
    return *static_cast<const Clock::time_point*>(timed.event());
  }
  Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from,
                       const ComputePoint&) override {
    return begin_copy(Direction::in, host_view(to), from);
  }
  Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from, const ComputePoint&) override {
    return begin_copy(Direction::out, to, host_view(from));
  }
  Ticket begin_copy_within(DeviceSpan to, DeviceSpan from, const ComputePoint&) override {
    return begin_copy(Direction::within, host_view(to), host_view(from));
  }
  Ticket begin_work(DeviceWork work, const ComputePoint&) override {
    return copies_.begin([this, work = std::move(work)] {
      const auto begin = Clock::now();
      work.issue(nullptr);
      work_row_.add(work.name, {}, begin, Clock::now());
    });
  }
  CopyCounters counters() const override {
    MutexLock lock(mutex_);
    return counters_;
  }

 private:
  enum class Direction { in, out, within };

  Ticket begin_copy(Direction direction, std::span<std::byte> to, std::span<const std::byte> from) {
    check_copy(to.size(), from.size());
    if (to.empty()) return Ticket();
    return copies_.begin([this, direction, to, from] { copy(direction, to, from); });
  }

  void copy(Direction direction, std::span<std::byte> to, std::span<const std::byte> from) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), to.size());
    if (direction == Direction::within) return;
    if (bandwidth_bytes_per_second_) {
      const std::chrono::duration<double> least(static_cast<double>(to.size()) /
                                                *bandwidth_bytes_per_second_);
      // Not synchronisation: the link that is modelled is busy for this long. Rounded up, so that
      // the modelled bandwidth is never exceeded.
      std::this_thread::sleep_until(begin + std::chrono::ceil<Clock::duration>(least));
    }
    const auto end = Clock::now();
    count(direction, to.size(), std::chrono::duration<double>(end - begin).count());
    (direction == Direction::in ? in_row_ : out_row_)
        .add("copy", {}, begin, end, {{"bytes", static_cast<std::int64_t>(to.size())}});
  }

  void count(Direction direction, std::uint64_t size_bytes, double seconds) {
    MutexLock lock(mutex_);
    if (direction == Direction::in) {
      counters_.in_bytes += size_bytes;
      counters_.in_busy_seconds += seconds;
    } else {
      counters_.out_bytes += size_bytes;
      counters_.out_busy_seconds += seconds;
    }
  }

  const std::optional<double> bandwidth_bytes_per_second_;
  const TraceRow in_row_;
  const TraceRow out_row_;
  const TraceRow work_row_;
  MemoryPool pool_;
  mutable Mutex mutex_;
  CopyCounters counters_ SLUICE_GUARDED_BY(mutex_);
  Worker copies_;  // and works; last: its thread ends before what they use
};

}  // namespace

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options) {
  return std::make_unique<HostDevice>(options);
}

}  // namespace sluice::offload
