#pragma once
// A stand-in for a GPU: the host device, whose memory only LibTorch addresses; all else goes by
// copies. Of a limited size it is one block that is cut up, as a GPU's is.

#include <memory>
#include <utility>

#include "device/run_device.hpp"
#include "sluice/offload/arena_source.hpp"

namespace sluice::train::test {

class FarDevice final : public offload::Device {
 public:
  explicit FarDevice(std::uint64_t memory_bytes)
      : near_(offload::make_host_device({})), pool_(make_pool(memory_bytes)) {}
  std::string_view name() const override { return "far"; }
  offload::MemoryPool& memory() override { return *pool_; }
  bool host_addressable() const override { return false; }
  std::unique_ptr<offload::MemorySource> make_pinned_source() override {
    return near_->make_pinned_source();
  }
  offload::ComputePoint mark_compute() override { return near_->mark_compute(); }
  offload::ComputePoint mark_time() override { return near_->mark_time(); }
  std::optional<std::chrono::steady_clock::time_point> time_of(
      const offload::ComputePoint& timed) override {
    return near_->time_of(timed);
  }
  Ticket begin_copy_in(std::span<std::byte> to, std::span<const std::byte> from,
                       const offload::ComputePoint& after) override {
    return near_->begin_copy_in(to, from, after);
  }
  Ticket begin_copy_out(std::span<std::byte> to, std::span<const std::byte> from,
                        const offload::ComputePoint& after) override {
    return near_->begin_copy_out(to, from, after);
  }
  Ticket begin_copy_within(std::span<std::byte> to, std::span<const std::byte> from,
                           const offload::ComputePoint& after) override {
    return near_->begin_copy_within(to, from, after);
  }
  offload::CopyCounters counters() const override { return near_->counters(); }

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

  const std::unique_ptr<offload::Device> near_;
  const std::unique_ptr<offload::MemoryPool> pool_;
};

inline RunDevice make_far_device(std::uint64_t memory_bytes) {
  RunDevice made;
  made.device = std::make_shared<FarDevice>(memory_bytes);
  made.allocator = std::make_unique<DeviceAllocatorScope>(
      std::shared_ptr<offload::MemoryPool>(made.device, &made.device->memory()));
  return made;
}

}  // namespace sluice::train::test
