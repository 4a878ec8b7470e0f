#pragma once
// RunDevice: the device that a run computes on, and LibTorch's part of it. Not installed.

#include <torch/types.h>

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
  std::unique_ptr<DeviceAllocatorScope> allocator;  // null: tensors have other memory
  torch::Device where = torch::kCPU;                // LibTorch's name of it
  IssueStep issue_step;                             // empty: the device computes no updates
};

// The device of `gpu` with `memory_bytes` of its memory; without `gpu`, the host device. LibTorch's
// tensors are in its memory from now on. `trace` may be null, and outlives the device. Throws
// InvalidArgument when LibTorch's part for GPUs cannot be loaded, OutOfMemory, CudaError.
RunDevice make_run_device(const std::optional<plan::GpuFacts>& gpu,
                          std::optional<std::uint64_t> memory_bytes, Trace* trace);
// Sets LibTorch's arithmetic as "deterministic" and "tf32" say. These are settings of the process;
// keys that the configuration leaves out change nothing.
void set_arithmetic(const config::SluiceConfig& sluice);
// The device that a plan is for. On a GPU it takes the planned bytes, or in a loop of the user's
// own the whole budget. Also calls set_arithmetic().
RunDevice make_run_device(const plan::Plan& plan, Trace* trace);
// The device that a plan is for, where LibTorch's tensors stay in LibTorch's own memory: of the
// device's memory, only the planned bytes are taken. On the host, they are taken as they are used.
// The calling thread's stream of the GPU is the one that computes. Also calls set_arithmetic().
RunDevice make_device_beside_libtorch(const plan::Plan& plan);

}  // namespace sluice::train
