#pragma once
// A stand-in for a GPU: the host device, whose memory LibTorch computes in and all other code
// reaches by copies only. With a limited size its memory is one arena, as a GPU's is.

#include <memory>
#include <utility>

#include "device/run_device.hpp"
#include "sluice/offload/arena_source.hpp"

namespace sluice::train::test {

class StandInGpu : public offload::Device {
 public:
  explicit StandInGpu(std::uint64_t memory_bytes)
      : host_(offload::make_host_device({})), pool_(make_pool(memory_bytes)) {}
  // With memory from `source`, which has `memory_bytes`.
  StandInGpu(std::uint64_t memory_bytes, std::unique_ptr<offload::MemorySource> source)
      : host_(offload::make_host_device({})),
        pool_(std::make_unique<offload::MemoryPool>(offload::Tier::device, memory_bytes,
                                                    std::move(source))) {}
  std::string_view name() const override { return "stand-in"; }
  offload::MemoryPool& memory() override { return *pool_; }
  bool host_addressable() const override { return false; }
  std::unique_ptr<offload::MemorySource> make_pinned_source() override {
    return host_->make_pinned_source();
  }
  offload::ComputePoint mark_compute() override { return host_->mark_compute(); }
  offload::ComputePoint mark_time() override { return host_->mark_time(); }
  std::optional<std::chrono::steady_clock::time_point> time_of(
      const offload::ComputePoint& timed) override {
    return host_->time_of(timed);
  }
  Ticket begin_copy_in(offload::DeviceSpan to, std::span<const std::byte> from,
                       const offload::ComputePoint& after) override {
    return host_->begin_copy_in(to, from, after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, offload::DeviceSpan from,
                        const offload::ComputePoint& after) override {
    return host_->begin_copy_out(to, from, after);
  }
  Ticket begin_copy_within(offload::DeviceSpan to, offload::DeviceSpan from,
                           const offload::ComputePoint& after) override {
    return host_->begin_copy_within(to, from, after);
  }
  Ticket begin_work(offload::DeviceWork work, const offload::ComputePoint& after) override {
    return host_->begin_work(std::move(work), after);
  }
  offload::CopyCounters counters() const override { return host_->counters(); }

 private:
  static std::unique_ptr<offload::MemoryPool> make_pool(std::uint64_t memory_bytes) {
    std::unique_ptr<offload::MemorySource> source = offload::make_host_source();
    if (memory_bytes != offload::kUnlimited) {
      source = std::make_unique<offload::ArenaSource>(std::move(source), memory_bytes,
                                                      offload::Tier::device, 512);
    }
    return std::make_unique<offload::MemoryPool>(offload::Tier::device, memory_bytes,
                                                 std::move(source));
  }

  const std::unique_ptr<offload::Device> host_;
  const std::unique_ptr<offload::MemoryPool> pool_;
};

// A device whose memory is the host's. LibTorch's tensors are in LibTorch's memory.
inline RunDevice without_allocator(std::shared_ptr<offload::Device> device) {
  RunDevice made;
  made.device = std::move(device);
  made.issue_step = [](const cpu_adam::StepArguments& step, std::uint32_t* non_finite, void*) {
    if (!cpu_adam::run_step(step)) *non_finite = 1;
  };
  return made;
}
inline RunDevice make_stand_in_gpu(std::shared_ptr<offload::Device> device) {
  RunDevice made = without_allocator(std::move(device));
  made.allocator = std::make_unique<DeviceAllocatorScope>(
      std::shared_ptr<offload::MemoryPool>(made.device, &made.device->memory()));
  return made;
}
inline RunDevice make_stand_in_gpu(std::uint64_t memory_bytes) {
  return make_stand_in_gpu(std::make_shared<StandInGpu>(memory_bytes));
}

}  // namespace sluice::train::test
