#pragma once
// DeviceNorms: norms of gradients on a device that the host does not address: computed there, and
// read when the gradient has arrived at home, so that nobody waits for a norm alone. Not installed.

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device/run_device.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/stall_meter.hpp"

namespace sluice::train {

// Confined to the thread that trains. The device outlives it.
class DeviceNorms {
 public:
  // For so many units; results come to host memory that is pinned, or not.
  DeviceNorms(RunDevice& device, std::size_t units, bool pinned);

  // Issues the norm of a unit's gradient. The gradient may leave, and its memory be used by work
  // that is issued later.
  void begin(std::size_t unit, std::span<std::byte> gradient, DType dtype);
  // Whether finish() would not block.
  bool done(std::size_t unit) const { return arriving_[unit].done(); }
  // Its squared norm, not finite when an element is not; blocks until it is here, and
  // `stall_seconds` grows by what that costs. Throws CudaError.
  double finish(std::size_t unit, const offload::StallMeter& stalls, double& stall_seconds);

 private:
  RunDevice& device_;
  offload::MemoryPool host_pool_;
  offload::Buffer host_;   // one fp64 value a unit
  torch::Tensor results_;  // (units) fp64, on the device
  std::vector<Ticket> arriving_;
};

}  // namespace sluice::train
