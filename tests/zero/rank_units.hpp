#pragma once
// A rank with what its units need, over the host device.

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero::test {

inline UnitLayout layout_of(const std::string& name, std::int64_t elements, int world_size) {
  UnitLayout layout;
  layout.name = name;
  add_param(layout, name + ".weight", {elements});
  finish_layout(layout, world_size);
  return layout;
}

// One rank: its communicators, device, memory and mover.
struct Rank {
  Rank(std::unique_ptr<Communicator> main, std::unique_ptr<Communicator> gather)
      : communicator(std::move(main)),
        gather_communicator(std::move(gather)),
        device(offload::make_host_device({})),
        host(offload::Tier::host, offload::kUnlimited, offload::make_host_source()),
        mover(*device, nullptr, nullptr, {}) {
    context = {device.get(),       &mover,     &worker, gather_communicator.get(),
               communicator.get(), DType::fp32};
    context.arrival_worker = &arrivals;
    context.reduce_worker = &reductions;
  }
  std::unique_ptr<ShardedUnit> unit(const UnitLayout& layout,
                                    offload::Tier tier = offload::Tier::host) {
    const std::size_t bytes =
        shard_range(layout, communicator->rank(), communicator->world_size()).count * 4;
    offload::MemoryPool& pool = tier == offload::Tier::device ? device->memory() : host;
    return std::make_unique<ShardedUnit>(
        layout, context, offload::TieredBytes(tier, pool.allocate(bytes, "weights")),
        offload::TieredBytes(tier, pool.allocate(bytes, "gradients")));
  }
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Communicator> gather_communicator;
  std::unique_ptr<offload::Device> device;
  offload::MemoryPool host;
  offload::Mover mover;
  Worker worker{"gather"};
  Worker arrivals{"arrive"};
  Worker reductions{"reduce"};
  UnitContext context;
};

inline Rank single() {
  return Rank(make_single_rank(), make_single_rank());
}

inline std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
inline std::span<float> floats(const Rank& rank, offload::DeviceSpan memory) {
  return floats(rank.device->host_view(memory));
}
inline std::span<float> floats(const Rank& rank, const offload::TieredBytes& home) {
  return floats(home.host_view(*rank.device));
}
inline void set_zero(const Rank& rank, offload::DeviceSpan memory) {
  std::ranges::fill(rank.device->host_view(memory), std::byte{0});
}

}  // namespace sluice::zero::test
