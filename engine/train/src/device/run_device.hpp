#pragma once
// RunDevice: where a run computes: the device, and LibTorch's part of it. Not installed.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "device/device_allocator.hpp"
#include "device/gpu_compute.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// A struct of owners, in order. Confined to the thread that computes.
struct RunDevice {
  std::unique_ptr<GpuCompute> gpu;                  // null: LibTorch computes on the CPU
  std::shared_ptr<offload::Device> device;          // shared with the tensors in its memory
  std::unique_ptr<DeviceAllocatorScope> allocator;  // null on a GPU
  torch::Device where = torch::kCPU;                // LibTorch's name of it
};

// That GPU with `memory_bytes` of its memory, or the host device; LibTorch's tensors are in its
// memory from now on. `trace` may be null, and outlives it. Throws InvalidArgument when LibTorch's
// part for GPUs cannot be loaded, OutOfMemory, CudaError.
RunDevice make_run_device(const std::optional<plan::GpuFacts>& gpu,
                          std::optional<std::uint64_t> memory_bytes, Trace* trace);
// As "deterministic" and "tf32" say. How LibTorch computes is one setting of the process, which is
// left as it is where the configuration says nothing.
void set_arithmetic(const config::SluiceConfig& sluice);
// The one that a plan is for: of a GPU as many bytes as are planned, or in a loop of the user's own
// the budget. Sets what "deterministic" and "tf32" say.
RunDevice make_run_device(const plan::Plan& plan, Trace* trace);

}  // namespace sluice::train
