#pragma once
// Device: where the model computes. It has memory under a budget and an in-order queue of copies
// that run asynchronously to the caller, as a stream does.
//
// The host device stands in where there is no GPU: its memory is a budgeted host pool, its copies
// run in order on a thread of their own, with an optional bandwidth limit, so that ordering and
// lifetime mistakes show without a GPU.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

struct CopyCounters {
  std::uint64_t in_bytes = 0;   // host to device
  std::uint64_t out_bytes = 0;  // device to host
  double in_busy_seconds = 0;
  double out_busy_seconds = 0;
};

// Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual MemoryPool& memory() = 0;
  // Whether the CPU may read and write the device's memory directly.
  virtual bool host_addressable() const = 0;
  // Queue a copy of equal-sized, non-overlapping spans; never block. Copies run in the order of the
  // calls, after the compute work that the calling thread issued before. Both spans stay valid
  // until the ticket has finished. Throw InvalidArgument on unequal sizes.
  virtual Ticket begin_copy_in(std::span<std::byte> device_to,
                               std::span<const std::byte> host_from) = 0;
  virtual Ticket begin_copy_out(std::span<std::byte> host_to,
                                std::span<const std::byte> device_from) = 0;
  // Within the device; not counted as traffic of a link.
  virtual Ticket begin_copy_within(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  virtual CopyCounters counters() const = 0;
};

struct HostDeviceOptions {
  std::uint64_t memory_bytes = kUnlimited;
  // Copies take at least bytes / this; for showing on one machine what a slower link does.
  std::optional<double> bandwidth_bytes_per_second;
  Trace* trace = nullptr;  // rows "h2d" and "d2h"
};

std::unique_ptr<Device> make_host_device(const HostDeviceOptions& options);

}  // namespace sluice::offload
