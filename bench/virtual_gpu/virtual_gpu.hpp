#pragma once
// VirtualGpu: a VirtualDevice on which LibTorch computes, and the configuration and the machine of
// its runs. The matrix products of a model take their operations over a rate; everything else that
// LibTorch does takes no time. Operations run on the CPU when they are issued; what is late is when
// the device says that they have run.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <string>

#include "device/run_device.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/plan/machine.hpp"
#include "virtual_device.hpp"

namespace sluice::bench {

// Weights at home on the GPU, states in host memory, with room for all.
inline config::TrainConfig virtual_config(std::int64_t micro_batches, double clipping) {
  config::TrainConfig config;
  config.micro_batch_size = 1;
  config.gradient_accumulation_steps = config.train_batch_size = micro_batches;
  config.bf16 = true;
  config.gradient_clipping = clipping;
  config.zero.stage = 3;
  config.zero.offload_optimizer.device = config::OffloadConfig::Device::cpu;
  config.zero.offload_param.device = config::OffloadConfig::Device::none;
  config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, std::uint64_t{8} << 30U};
  config.sluice.host_bytes = {config::ByteBudget::Kind::bytes, std::uint64_t{8} << 30U};
  config.sluice.threads.compute = 1;  // threads that wait for work would run, and hold up the time
  config.sluice.threads.optimizer = 2;
  return config;
}

// The machine of these runs, with memory for all.
inline plan::MachineFacts virtual_facts(const config::TrainConfig& config) {
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.device_choice.clear();
  machine.total_memory_bytes = machine.available_memory_bytes = std::uint64_t{1} << 40U;
  machine.memlock_bytes = offload::kUnlimited;
  machine.device.host_addressable = false;
  machine.device.gpu =
      plan::GpuFacts{0, "virtual", std::uint64_t{1} << 40U, std::uint64_t{1} << 40U};
  return machine;
}

// One at a time in a process, because LibTorch has one list of observers.
class VirtualGpu {
 public:
  // `flops`: operations per second.
  VirtualGpu(VirtualClock& clock, double bandwidth, double flops)
      : device_(std::make_shared<VirtualDevice>(clock, bandwidth)) {
    observed() = {device_.get(), flops};
    observer_ = at::addGlobalCallback(at::RecordFunctionCallback(&VirtualGpu::begin)
                                          .needsInputs(true)
                                          .scopes({at::RecordScope::FUNCTION}));
  }
  ~VirtualGpu() {
    at::removeCallback(observer_);
    observed() = {};
  }
  VirtualGpu(const VirtualGpu&) = delete;
  VirtualGpu& operator=(const VirtualGpu&) = delete;

  VirtualDevice& device() { return *device_; }
  train::RunDevice run_device() const {
    train::RunDevice made;
    made.device = device_;
    made.allocator = std::make_unique<train::DeviceAllocatorScope>(
        std::shared_ptr<offload::MemoryPool>(device_, &device_->memory()));
    made.issue_step = [](const cpu_adam::StepArguments& step, std::uint32_t* non_finite, void*) {
      if (!cpu_adam::run_step(step)) *non_finite = 1;
    };
    return made;
  }

 private:
  struct Observed {
    VirtualDevice* device = nullptr;
    double flops = 0;
  };
  // Set before the first operation and after the last one.
  static Observed& observed() {
    static Observed all;
    return all;
  }
  // (M, K) times (K, N), the last two dimensions of the two factors.
  static double operations(const at::Tensor& a, const at::Tensor& b) {
    return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const Observed& to = observed();
    if (to.device == nullptr) return nullptr;
    const std::string name = function.name();
    const auto inputs = function.inputs();
    if (name == "aten::addmm" || name == "aten::addmm_") {
      to.device->issue(operations(inputs[1].toTensor(), inputs[2].toTensor()) / to.flops);
    } else if (name == "aten::mm") {
      to.device->issue(operations(inputs[0].toTensor(), inputs[1].toTensor()) / to.flops);
    } else if (name == "aten::_local_scalar_dense" || name == "aten::equal") {
      to.device->synchronize();  // a GPU's host waits for all work when it reads a value
    }
    return nullptr;
  }

  const std::shared_ptr<VirtualDevice> device_;  // shared with the run's tensors
  at::CallbackHandle observer_ = 0;
};

}  // namespace sluice::bench
