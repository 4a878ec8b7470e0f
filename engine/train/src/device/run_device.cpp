#include "device/run_device.hpp"

#include <ATen/Context.h>

#include <cstdlib>
#include <utility>

#include "sluice/base/text.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::train {

namespace {

RunDevice make_host(std::optional<std::uint64_t> memory_bytes, std::string what_for, Trace* trace) {
  RunDevice made;
  made.device =
      offload::make_host_device({.memory_bytes = memory_bytes.value_or(offload::kUnlimited),
                                 .bandwidth_bytes_per_second = std::nullopt,
                                 .trace = trace});
  made.allocator = std::make_unique<DeviceAllocatorScope>(
      std::shared_ptr<offload::MemoryPool>(made.device, &made.device->memory()),
      std::move(what_for));
  return made;
}

// The name of LibTorch's blocks in errors, where a plan leaves the rest of a budget to them. A
// smaller micro-batch is an advice where that rest is more than the plan's own bytes.
std::string tensor_beside(const plan::Plan& plan) {
  const std::uint64_t budget = *plan.budget.device_bytes;
  const std::uint64_t own = plan.planned.tiers.device;
  return "a tensor of the loop (\"sluice\": {\"device_bytes\"} is its budget, " +
         format_bytes(budget) + ", of which the plan takes up to " + format_bytes(own) +
         (own <= budget / 2 ? "; a smaller micro-batch needs less)"
                            : "; a larger one leaves more)");
}

RunDevice make_gpu(const plan::GpuFacts& gpu, std::uint64_t memory_bytes, TensorMemory tensors,
                   offload::HostMemory host_memory, Trace* trace) {
  // Where LibTorch keeps its own memory, the program around decides how its threads wait.
  if (tensors == TensorMemory::budget) offload::let_cuda_waits_sleep(gpu.index);
  RunDevice made;
  made.gpu = load_gpu_compute(gpu.index, tensors);
  made.device = offload::make_cuda_device({.index = gpu.index,
                                           .memory_bytes = memory_bytes,
                                           .page_bytes = gpu.page_bytes,
                                           .compute_stream = made.gpu->stream(),
                                           .host_memory = host_memory,
                                           .trace = trace});
  made.where = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(gpu.index));
  made.issue_step = [gpu = made.gpu.get()](const cpu_adam::StepArguments& step,
                                           std::uint32_t* non_finite, void* stream) {
    gpu->issue_step(step, non_finite, stream);
  };
  if (tensors == TensorMemory::libtorch) return made;
  made.gpu->use_memory(std::make_shared<const GpuMemory>(
      GpuMemory{[device = made.device](std::size_t size_bytes) {
                  return device->memory().allocate_raw(size_bytes, kTensorOfModel);
                },
                [device = made.device](void* block, std::size_t size_bytes) {
                  device->memory().free_raw(block, size_bytes);
                }}));
  return made;
}

std::uint64_t memory_of(const plan::GpuFacts& gpu, std::optional<std::uint64_t> memory_bytes) {
  return memory_bytes.value_or(gpu.free_bytes / 10 * 9);
}

offload::HostMemory host_memory_of(const plan::Plan& plan) {
  return plan.planned.pinned_staging ? offload::HostMemory::pinned : offload::HostMemory::pageable;
}

}  // namespace

void set_arithmetic(const config::SluiceConfig& sluice) {
  if (sluice.gpu_math.deterministic) {
    // cuBLAS reads the variable at its first use; LibTorch refuses deterministic mode without it.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  if (sluice.gpu_math.tf32) at::globalContext().setFloat32MatmulPrecision("high");
}

RunDevice make_run_device(const std::optional<plan::GpuFacts>& gpu,
                          std::optional<std::uint64_t> memory_bytes, Trace* trace) {
  if (gpu) {
    return make_gpu(*gpu, memory_of(*gpu, memory_bytes), TensorMemory::budget,
                    offload::HostMemory::pinned, trace);
  }
  return make_host(memory_bytes, kTensorOfModel, trace);
}

RunDevice make_run_device(const plan::Plan& plan, Trace* trace) {
  const bool known = !(plan.own_loop() && !plan.own.activation_bytes);
  if (!plan.device.gpu)
    return make_host(plan.budget.device_bytes,
                     known || !plan.budget.device_bytes ? kTensorOfModel : tensor_beside(plan),
                     trace);
  set_arithmetic(plan.config.sluice);
  return make_gpu(
      *plan.device.gpu,
      known ? plan.planned.tiers.device : memory_of(*plan.device.gpu, plan.budget.device_bytes),
      TensorMemory::budget, host_memory_of(plan), trace);
}

RunDevice make_device_beside_libtorch(const plan::Plan& plan) {
  if (plan.device.gpu) {
    set_arithmetic(plan.config.sluice);
    return make_gpu(*plan.device.gpu, plan.planned.tiers.device, TensorMemory::libtorch,
                    host_memory_of(plan), nullptr);
  }
  RunDevice made;
  made.device = offload::make_host_device({.memory_bytes = offload::kUnlimited,
                                           .bandwidth_bytes_per_second = std::nullopt,
                                           .trace = nullptr});
  return made;
}

}  // namespace sluice::train
