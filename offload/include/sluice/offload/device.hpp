#pragma once
// Device: where the model computes. It has memory under a budget and in-order queues of copies that
// run asynchronously to the caller, as streams do.
//
// Compute work is what the caller issues elsewhere (LibTorch, on a stream of the device); it may
// still run when the call that issued it has returned. Copies are ordered with it by ComputePoint;
// compute work that is issued after a copy's ticket has finished comes after that copy.
//
// The host device stands in where there is no GPU: its memory is a budgeted host pool, its copies
// run in order on a thread of their own, with an optional bandwidth limit, so that ordering and
// lifetime mistakes show without a GPU.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

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

// A point in the order of a device's compute work. Copyable: it is shared by the copies that wait
// for it. The device outlives it.
class ComputePoint {
 public:
  // Before all compute work: nothing to wait for.
  ComputePoint() = default;
  explicit ComputePoint(std::shared_ptr<void> event) : event_(std::move(event)) {}
  // What the device that made the point knows it by; null: nothing to wait for.
  void* event() const { return event_.get(); }

 private:
  std::shared_ptr<void> event_;  // shared by copies of the point
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
  // Where a pool of host memory gets blocks that copies of this device run fastest from:
  // page-locked, and known to the device. The device outlives it. Its allocate() throws OutOfMemory
  // that names the limit and what to change.
  virtual std::unique_ptr<MemorySource> make_pinned_source() = 0;
  // After all compute work that has been issued so far, by whichever thread. Throws CudaError.
  virtual ComputePoint mark_compute() = 0;
  // The same, and when it is reached can be asked. Throws CudaError.
  virtual ComputePoint mark_time() = 0;
  // When compute work reached such a point, by the host's clock; nullopt: not yet. Throws
  // CudaError.
  virtual std::optional<std::chrono::steady_clock::time_point> time_of(
      const ComputePoint& timed) = 0;
  // Queue a copy of equal-sized, non-overlapping spans that begins after `after`; never block on
  // it. Copies of one direction run in the order of the calls; copies within the device count as
  // inward. Copies of both directions run at the same time where the device can. Both spans stay
  // valid until the ticket has finished. Throw InvalidArgument on unequal sizes.
  virtual Ticket begin_copy_in(DeviceSpan to, std::span<const std::byte> from,
                               const ComputePoint& after) = 0;
  virtual Ticket begin_copy_out(std::span<std::byte> to, DeviceSpan from,
                                const ComputePoint& after) = 0;
  // Within the device; not counted as traffic of a link.
  virtual Ticket begin_copy_within(DeviceSpan to, DeviceSpan from, const ComputePoint& after) = 0;
  virtual CopyCounters counters() const = 0;

  // After all compute work issued so far.
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
  // Copies take at least bytes / this; for showing on one machine what a slower link does.
  std::optional<double> bandwidth_bytes_per_second;
  Trace* trace = nullptr;  // rows "h2d" and "d2h"
};

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::offload
