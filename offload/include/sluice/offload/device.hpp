#pragma once
// Device: where the model computes. A device has memory under a budget, and queues of copies. A
// queue runs its copies in order and asynchronously to the caller, as a stream does.
//
// Compute work is issued elsewhere (by LibTorch, on a stream of the device), and may still run
// after the issuing call has returned. A ComputePoint orders a copy after earlier compute work.
// Compute work issued after a copy's ticket has finished runs after that copy.
//
// Device memory is a DeviceSpan, host memory a std::span<std::byte>.
//
// The host device stands in where there is no GPU. Its memory is a budgeted host pool. Its copies
// run in order on one thread, optionally at a limited bandwidth, so mistakes of ordering and
// lifetime show without a GPU.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

struct CopyCounters {
  std::uint64_t in_bytes = 0;   // host to device
  std::uint64_t out_bytes = 0;  // device to host
  double in_busy_seconds = 0;
  double out_busy_seconds = 0;
};

// A point in the order of a device's compute work. Copyable: the copies that wait for a point share
// it. The device outlives its points.
class ComputePoint {
 public:
  // Before all compute work: nothing to wait for.
  ComputePoint() = default;
  explicit ComputePoint(std::shared_ptr<void> event) : event_(std::move(event)) {}
  // The event of the device that made the point; null: nothing to wait for.
  void* event() const { return event_.get(); }

 private:
  std::shared_ptr<void> event_;  // shared by copies of the point
};

// Work of the engine's own on a device, beside the compute work: an update of optimizer states.
struct DeviceWork {
  std::string name;  // for errors and the trace
  // Called once, before the ticket ends, on the calling thread or one of the device. Issues the
  // work to `stream`, a cudaStream_t, on a GPU; computes at once where `stream` is null. The
  // ticket has the error that it throws.
  std::function<void(void* stream)> issue;
  // Device memory that the work reads or writes; valid until the ticket has finished.
  std::vector<DeviceSpan> uses;
};

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual MemoryPool& memory() = 0;
  // Whether the CPU can read and write the device's memory.
  virtual bool host_addressable() const = 0;
  // Device memory as host memory, where it is both. Throws InvalidArgument unless
  // host_addressable().
  std::span<std::byte> host_view(DeviceSpan memory) const;
  // A source of host memory from which this device copies fastest: page-locked, registered with the
  // device, and absent in forked children. The device outlives the source. The source's allocate()
  // throws an OutOfMemory that names the limit and what to change.
  virtual std::unique_ptr<MemorySource> make_pinned_source() = 0;
  // The point after all compute work issued so far, by any thread. Throws CudaError.
  virtual ComputePoint mark_compute() = 0;
  // Whether compute work has surely passed the point. A device that cannot tell says no.
  virtual bool has_passed(const ComputePoint& point) { return point.event() == nullptr; }
  // Like mark_compute(), but timed: query it with time_of(). Throws CudaError.
  virtual ComputePoint mark_time() = 0;
  // When compute work reached a point of mark_time(), by the host's clock; nullopt: not yet
  // reached. Throws CudaError.
  virtual std::optional<std::chrono::steady_clock::time_point> time_of(
      const ComputePoint& timed) = 0;
  // Queue a copy of equal-sized, non-overlapping spans that begins after `after`; never block on
  // it. Copies of one direction that wait for a point run in the order of the calls, and so do
  // copies with a default ComputePoint, which wait for nothing. Between these two there is no
  // order: a copy that waits for nothing passes the ones that wait. Copies within the device are
  // ordered as inward ones. Both directions run at the same time where the device can. Both spans
  // stay valid until the ticket has finished. Throw InvalidArgument on unequal sizes.
  virtual Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from,
                               const ComputePoint& after) = 0;
  virtual Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from,
                                const ComputePoint& after) = 0;
  // Within the device; counters() leave it out.
  virtual Ticket begin_copy_within(DeviceSpan to, DeviceSpan from, const ComputePoint& after) = 0;
  // Queues work that begins after `after`; never blocks on it. Works run in the order of the calls,
  // beside compute work and copies: the caller waits for the tickets of what must come before.
  virtual Ticket begin_work(DeviceWork work, const ComputePoint& after) = 0;
  virtual CopyCounters counters() const = 0;

  // These begin after all compute work issued so far.
  Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from) {
    return begin_copy_in(to, from, mark_compute());
  }
  Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from) {
    return begin_copy_out(to, from, mark_compute());
  }
  Ticket begin_copy_within(DeviceSpan to, DeviceSpan from) {
    return begin_copy_within(to, from, mark_compute());
  }
};

struct HostDeviceOptions {
  std::uint64_t memory_bytes = kUnlimited;
  // A copy takes at least its bytes divided by this; shows on one machine the effect of a slower
  // link.
  std::optional<double> bandwidth_bytes_per_second;
  Trace* trace = nullptr;  // rows "h2d", "d2h" and "work"
};

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::offload
