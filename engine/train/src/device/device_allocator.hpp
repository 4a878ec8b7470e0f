#pragma once
// LibTorch's CPU tensors, activations included, counted against the device tier of the host device.

#include <memory>
#include <string>

#include "sluice/offload/memory_pool.hpp"

namespace sluice::train {

// Name of LibTorch's blocks in pools and errors.
inline constexpr const char* kTensorOfModel =
    "a tensor of the model (\"sluice\": {\"device_bytes\"} is its budget; a smaller micro-batch "
    "needs less)";

// Tensors that LibTorch makes on the CPU take their memory from `pool` while this object lives,
// unless their thread has an OutsideBudget. A tensor beyond the budget throws OutOfMemory where it
// is made; `what_for` names it there. One object at a time in a process. Tensors may outlive it:
// each shares the pool. Thread-safe.
class DeviceAllocatorScope {
 public:
  explicit DeviceAllocatorScope(std::shared_ptr<offload::MemoryPool> pool,
                                std::string what_for = kTensorOfModel);
  ~DeviceAllocatorScope();
  DeviceAllocatorScope(const DeviceAllocatorScope&) = delete;
  DeviceAllocatorScope& operator=(const DeviceAllocatorScope&) = delete;
};

}  // namespace sluice::train
