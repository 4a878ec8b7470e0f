#pragma once
// DeviceNorms: squared norms of gradients on a device that is not host-addressable. The device
// computes them; the host reads a norm when its gradient has arrived at home, so it never waits for
// a norm alone. Not installed.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "device/run_device.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/stall_meter.hpp"

namespace sluice::train {

// Confined to one thread at a time for each unit; the threads of different units may differ. The
// device outlives it.
class DeviceNorms {
 public:
  // `pinned`: results arrive in pinned host memory.
  DeviceNorms(RunDevice& device, std::size_t units, bool pinned);

  // Issues the norm of a unit's gradient. Work that is issued later may move the gradient and reuse
  // its memory.
  void begin(std::size_t unit, offload::DeviceSpan gradient, DType dtype);
  // Blocks until the norm has arrived. Leaves an error for finish().
  void wait(std::size_t unit) const { arriving_[unit].wait(); }
  // The norm that has arrived.
  double squared_norm(std::size_t unit) const;
  // True when finish() does not block.
  bool done(std::size_t unit) const { return arriving_[unit].done(); }
  // Squared norm of the unit's gradient; non-finite when an element is. Blocks until it has arrived
  // and adds the wait to `stall_seconds`. Throws CudaError.
  double finish(std::size_t unit, const offload::StallMeter& stalls, double& stall_seconds);

 private:
  RunDevice& device_;
  offload::MemoryPool host_pool_;
  offload::Buffer host_;   // one fp64 value per unit
  torch::Tensor results_;  // (units) fp64, on the device
  std::vector<Ticket> arriving_;
};

}  // namespace sluice::train
