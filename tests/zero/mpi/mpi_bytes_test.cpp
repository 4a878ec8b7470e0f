// Bytes on the wire of a step, by a counter outside of Sluice (mpi_counted.cpp, preloaded): those
// that ZeRO's stages need, and those that the communicators report.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "mpi_world.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero {
namespace {

using offload::Tier;
using test::MpiWorld;

template <typename Function>
Function counter(const char* name) {
  auto function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) throw std::runtime_error(std::string(name) + " is not preloaded");
  return function;
}

// Communicators in the order in which join_mpi makes them.
enum Channel { compute, gather };

std::uint64_t wire_bytes(Channel channel) {
  return counter<std::uint64_t (*)(int)>("counted_sent_bytes")(channel);
}

struct Sent {
  std::uint64_t wire = 0;
  std::uint64_t payload = 0;
  std::uint64_t headers = 0;

  Sent operator-(const Sent& before) const {
    return {wire - before.wire, payload - before.payload, headers - before.headers};
  }
};

class WireBytes : public testing::Test {
 protected:
  WireBytes() {
    context = {device.get(),
               &mover,
               &worker,
               MpiWorld::ranks().gather.get(),
               MpiWorld::ranks().compute.get(),
               DType::bf16};
    context.arrival_worker = &arrivals;
    context.reduce_worker = &reducer;
    for (int i = 0; i < 3; ++i) {
      UnitLayout layout;
      layout.name = "h." + std::to_string(i);
      add_param(layout, layout.name + ".weight", {20'000 + 5000 * i});
      finish_layout(layout, MpiWorld::ranks().compute->world_size());
      layouts.push_back(layout);
    }
    for (const UnitLayout& layout : layouts) {
      const auto shard = shard_range(layout, MpiWorld::ranks().compute->rank(),
                                     MpiWorld::ranks().compute->world_size());
      const std::size_t bytes = shard.count * size_of(DType::bf16);
      units.push_back(std::make_unique<ShardedUnit>(
          layout, context, offload::TieredBytes(Tier::host, host.allocate(bytes, "weights")),
          offload::TieredBytes(Tier::host, host.allocate(bytes, "gradients"))));
    }
  }

  static Sent sent(Channel channel) {
    const Communicator& comm =
        channel == gather ? *MpiWorld::ranks().gather : *MpiWorld::ranks().compute;
    const CommunicatorCounters counters = comm.counters();
    return {wire_bytes(channel), counters.sent_bytes(), counters.header_bytes};
  }
  void gather_all() {
    GatherStall stall;
    for (auto& unit : units) {
      unit->finish_gather(stall);
      unit->release();
    }
  }
  void reduce_all() {
    double waited = 0;
    for (auto& unit : units) {
      const auto memory = device->host_view(unit->begin_accumulate());
      std::fill(memory.begin(), memory.end(), std::byte{0});
      unit->restore_accumulated(waited);
      unit->begin_reduce_home();
      unit->finish_reduce(waited);
      unit->consume_gradients();
    }
  }
  // Bytes of all units' flat buffers, and what a rank sends of each of them: (N - 1) / N.
  std::uint64_t parameter_bytes() const {
    std::uint64_t sum = 0;
    for (const UnitLayout& layout : layouts) sum += layout.flat_count * size_of(DType::bf16);
    return sum;
  }
  std::uint64_t share() const {
    const auto ranks_count = static_cast<std::uint64_t>(MpiWorld::ranks().compute->world_size());
    return parameter_bytes() * (ranks_count - 1) / ranks_count;
  }
  static void expect_sent(const Sent& sent, std::uint64_t payload) {
    EXPECT_EQ(sent.payload, payload);
    EXPECT_EQ(sent.wire, payload + sent.headers);
  }

  std::unique_ptr<offload::Device> device = offload::make_host_device({});
  offload::MemoryPool host{Tier::host, offload::kUnlimited, offload::make_host_source()};
  offload::Mover mover{*device, nullptr, nullptr, {}};
  Worker worker{"gather"};
  Worker arrivals{"arrive"};
  Worker reducer{"reduce"};
  UnitContext context;
  std::vector<UnitLayout> layouts;
  std::vector<std::unique_ptr<ShardedUnit>> units;
};

// Forward and backward gather every unit; backward reduces every gradient: 3 P (N - 1) / N.
TEST_F(WireBytes, OfAStepOfStage3AreThreeTimesTheParametersLessTheOwnShard) {
  const Sent gathers = sent(gather);
  const Sent reductions = sent(compute);
  gather_all();
  gather_all();
  reduce_all();
  expect_sent(sent(gather) - gathers, 2 * share());
  expect_sent(sent(compute) - reductions, share());
  EXPECT_EQ(counter<int (*)()>("counted_other_sends")(), 0);
}

// Gradients are reduced, and weights gathered once after the update: 2 P (N - 1) / N.
TEST_F(WireBytes, OfAStepOfStages0To2AreTwiceTheParametersLessTheOwnShard) {
  const Sent gathers = sent(gather);
  const Sent reductions = sent(compute);
  reduce_all();
  gather_all();
  expect_sent(sent(gather) - gathers, share());
  expect_sent(sent(compute) - reductions, share());
}

}  // namespace
}  // namespace sluice::zero
