#include "device/run_device.hpp"

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "device/tensor_bytes.hpp"
#include "measure/unit_samples.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

RunDevice make_gpu(int index, std::uint64_t memory_bytes, Trace* trace) {
  RunDevice made;
  made.gpu = load_gpu_compute(index);
  made.device = offload::make_cuda_device({.index = index,
                                           .memory_bytes = memory_bytes,
                                           .compute_stream = made.gpu->stream(),
                                           .trace = trace});
  made.where = torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(index));
  made.gpu->use_memory(std::make_shared<const GpuMemory>(
      GpuMemory{[device = made.device](std::size_t size_bytes) {
                  return device->memory().allocate_raw(size_bytes, kTensorOfModel);
                },
                [device = made.device](void* block, std::size_t size_bytes) {
                  device->memory().free_raw(block, size_bytes);
                }}));
  return made;
}

class WorkspaceWatch {
 public:
  explicit WorkspaceWatch(offload::MemoryPool& pool) : pool_(pool) { start(); }
  void start() {
    pool_.reset_peak();
    before_bytes_ = pool_.usage().live_bytes;
  }
  std::uint64_t live_bytes() const { return pool_.usage().live_bytes - before_bytes_; }
  std::uint64_t peak_bytes() const { return pool_.usage().peak_live_bytes - before_bytes_; }

 private:
  offload::MemoryPool& pool_;
  std::uint64_t before_bytes_ = 0;
};

models::UnitWorkspace measure(const UnitSamples& units, std::size_t unit,
                              offload::MemoryPool& pool) {
  models::UnitWorkspace seen;
  Tensor x = units.input(unit);
  const Tensor of_output = units.output_gradient(unit);
  WorkspaceWatch watch(pool);
  {
    const torch::NoGradGuard no_grad;
    const Tensor y = units.run(unit, x);
    seen.forward_bytes = watch.peak_bytes();
  }
  if (unit > 0) x.requires_grad_();
  watch.start();
  Tensor y = units.run(unit, x);
  seen.keeping_bytes = watch.peak_bytes();
  seen.kept_bytes = watch.live_bytes() - offload::pool_bytes(y.nbytes());
  y.backward(of_output);
  seen.backward_bytes = watch.peak_bytes();
  // The plan counts on it.
  seen.keeping_bytes = std::max(seen.keeping_bytes, seen.forward_bytes);
  if (units.is_head(unit)) seen.keeping_bytes = seen.kept_bytes = 0;  // its backward is at once
  return seen;
}

}  // namespace

void set_arithmetic(const config::SluiceConfig& sluice) {
  if (sluice.deterministic) {
    // cuBLAS reads it when it is first used; LibTorch refuses to be deterministic without.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  if (sluice.tf32) at::globalContext().setFloat32MatmulPrecision("high");
}

RunDevice make_run_device(const std::optional<plan::GpuFacts>& gpu,
                          std::optional<std::uint64_t> memory_bytes, Trace* trace) {
  if (gpu) return make_gpu(gpu->index, memory_bytes.value_or(gpu->free_bytes / 10 * 9), trace);
  RunDevice made;
  made.device =
      offload::make_host_device({.memory_bytes = memory_bytes.value_or(offload::kUnlimited),
                                 .bandwidth_bytes_per_second = std::nullopt,
                                 .trace = trace});
  made.allocator = std::make_unique<DeviceAllocatorScope>(
      std::shared_ptr<offload::MemoryPool>(made.device, &made.device->memory()));
  return made;
}

RunDevice make_run_device(const plan::Plan& plan, Trace* trace) {
  if (plan.device.gpu) set_arithmetic(plan.config.sluice);
  const bool known = plan.device.gpu && !(plan.own_loop() && !plan.own.activation_bytes);
  return make_run_device(plan.device.gpu,
                         known ? plan.planned.tiers.device : plan.budget.device_bytes, trace);
}

models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const RunDevice& device) {
  offload::MemoryPool& pool = device.device->memory();
  const WorkspaceWatch all(pool);
  models::UnitWorkspaces seen;
  {
    const UnitSamples units({model, config.compute_dtype(), config.micro_batch_size}, device.where);
    // What is loaded and taken on first use is not the second's.
    for (std::size_t unit = 0; unit < units.size(); ++unit) measure(units, unit, pool);
    seen.embedding = measure(units, 0, pool);
    seen.block = measure(units, 1, pool);
    seen.head = measure(units, 2, pool);
  }
  seen.held_bytes = all.live_bytes();
  seen.measured = true;
  seen.micro_batch = config.micro_batch_size;
  seen.n_positions = model.n_positions;
  return seen;
}

models::UnitWorkspaces measure_workspaces(const config::TrainConfig& config,
                                          const config::ModelConfig& model,
                                          const plan::GpuFacts& gpu) {
  set_arithmetic(config.sluice);
  RunDevice device = make_run_device(gpu, std::nullopt, nullptr);
  const models::UnitWorkspaces seen = measure_workspaces(config, model, device);
  // What is kept would keep all of this memory, which the run is to have.
  const std::shared_ptr<offload::Device> memory = device.device;
  device.gpu.reset();
  const std::uint64_t left = memory->memory().usage().live_bytes;
  if (left > 0) {
    throw Error("LibTorch keeps " + format_bytes(left) +
                " of the GPU's memory beyond its use: this version of it does not work with "
                "memory that is given to it");
  }
  return seen;
}

}  // namespace sluice::train
