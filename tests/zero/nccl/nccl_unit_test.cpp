// Units whose ranks have a GPU each: gathered and reduced by NCCL, in the GPU's order.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "fake_ranks.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero {
namespace {

using offload::Tier;
using offload::test::Gate;
using test::FakeRanks;
using test::give_time_for_mistakes;

constexpr int kRanks = 2;

// One rank: its half of a unit, at home in host memory.
struct Rank {
  Rank(FakeRanks& ranks, std::size_t index, const UnitLayout& unit_layout)
      : device(*ranks.devices[index]),
        context{.device = &device,
                .mover = &mover,
                .gather_worker = &worker,
                .gather_communicator = ranks.ranks[index].get(),
                .communicator = ranks.ranks[index].get(),
                .dtype = DType::fp32,
                .reduce_worker = &reducer,
                .arrival_worker = &arrivals},
        unit(unit_layout, context, home(unit_layout), home(unit_layout)),
        whole(unit_layout, context, whole_home(unit_layout), home(unit_layout),
              WeightsHome::whole) {}
  offload::TieredBytes home(const UnitLayout& layout) {
    const std::size_t bytes = layout.flat_count / kRanks * sizeof(float);
    return offload::TieredBytes(Tier::host, host.allocate(bytes, "a home"));
  }
  offload::TieredBytes whole_home(const UnitLayout& layout) {
    return offload::TieredBytes(
        Tier::device, device.memory().allocate(layout.flat_count * sizeof(float), "a home"));
  }
  std::span<float> floats(const offload::TieredBytes& bytes) const {
    const std::span<std::byte> view = bytes.host_view(device);
    return {reinterpret_cast<float*>(view.data()), view.size() / sizeof(float)};
  }
  std::vector<float> content(offload::DeviceSpan from) const {
    std::vector<float> values(from.size_bytes() / sizeof(float));
    device.begin_copy_out(std::as_writable_bytes(std::span(values)), from).finish();
    return values;
  }

  offload::Device& device;
  offload::MemoryPool host{Tier::host, offload::kUnlimited, offload::make_host_source()};
  offload::Mover mover{device, nullptr, nullptr, {}};
  Worker worker{"gather"};
  Worker arrivals{"arrive"};
  Worker reducer{"reduce"};
  UnitContext context;
  ShardedUnit unit;   // its weights at home are a shard in host memory
  ShardedUnit whole;  // all its weights are at home on the device
};

class NcclUnits : public testing::Test {
 protected:
  NcclUnits() {
    layout.name = "h.1";
    add_param(layout, "h.1.weight", {6000});
    finish_layout(layout, kRanks);
    ranks.join();
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      each[rank] = std::make_unique<Rank>(ranks, rank, layout);
  }
  ~NcclUnits() override {
    for (auto& rank : each) rank.reset();
  }
  template <typename Body>
  void on_ranks(const Body& body) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] { body(*each[rank], rank); });
    for (std::thread& thread : threads) thread.join();
  }
  // Backward of this rank, which ends when `gate` is open. Each gradient is the index + 0.5.
  void begin_late_backward(Rank& rank, std::size_t index, const Gate& gate) {
    const offload::DeviceSpan gradients = rank.unit.begin_accumulate();
    ranks.cuda->launch(ranks.streams[index], [this, gradients, index, wait = gate.waiter()] {
      wait();
      const std::vector<float> values(gradients.size_bytes() / sizeof(float),
                                      static_cast<float>(index) + 0.5F);
      std::memcpy(ranks.cuda->as_device(gradients.address()), values.data(),
                  gradients.size_bytes());
    });
  }

  UnitLayout layout;
  FakeRanks ranks{kRanks};
  std::array<std::unique_ptr<Rank>, kRanks> each;
};

TEST_F(NcclUnits, AreGatheredFromTheHomesOfAllRanks) {
  on_ranks([&](Rank& rank, std::size_t index) {
    std::ranges::fill(rank.floats(rank.unit.weights_home()), static_cast<float>(index + 1));
    GatherStall stall;
    rank.unit.finish_gather(stall);
    const std::vector<float> weights = rank.content(rank.unit.weights());
    EXPECT_EQ(weights.front(), 1.0F);
    EXPECT_EQ(weights.back(), 2.0F);
    rank.unit.release();
  });
}

// Backward still reads the weights of a unit when the next gather begins in their memory.
TEST_F(NcclUnits, AreGatheredOnceTheirMemoryIsUnused) {
  on_ranks([&](Rank& rank, std::size_t index) {
    for (const bool is_whole : {false, true}) {
      ShardedUnit& unit = is_whole ? rank.whole : rank.unit;
      const auto set_shard = [&](float value) {
        const std::vector<float> shard(unit.weights_home().size_bytes() / sizeof(float), value);
        if (is_whole) {
          rank.device
              .begin_copy_in(unit.weights_home().device_memory(), std::as_bytes(std::span(shard)),
                             {})
              .finish();
          unit.note_change();
        } else {
          std::ranges::copy(shard, rank.floats(unit.weights_home()).begin());
        }
      };
      set_shard(1);
      GatherStall stall;
      unit.finish_gather(stall);
      const offload::DeviceSpan used = unit.weights();
      Gate gate;
      std::vector<float> seen(used.size_bytes() / sizeof(float));
      ranks.cuda->launch(ranks.streams[index], [&, used, wait = gate.waiter()] {
        wait();
        std::memcpy(seen.data(), ranks.cuda->as_device(used.address()), used.size_bytes());
      });
      unit.release();
      // The update of whole weights writes this rank's shard itself; the other one's is gathered.
      const std::size_t others = is_whole ? (1 - index) * seen.size() / 2 : 0;
      const std::size_t count = is_whole ? seen.size() / 2 : seen.size();
      set_shard(2);
      unit.begin_gather();
      give_time_for_mistakes();
      gate.open();
      unit.finish_gather(stall);
      EXPECT_EQ(unit.weights().address(), used.address());
      EXPECT_EQ(std::vector<float>(seen.begin() + static_cast<std::ptrdiff_t>(others),
                                   seen.begin() + static_cast<std::ptrdiff_t>(others + count)),
                std::vector<float>(count, 1.0F))
          << (is_whole ? "whole" : "a shard");
      const std::vector<float> gathered = rank.content(unit.weights());
      EXPECT_EQ(gathered, std::vector<float>(seen.size(), 2.0F));
      unit.release();
    }
  });
}

// With a worker for reductions the computing thread goes on, and backward is late.
TEST_F(NcclUnits, AreReducedByAWorkerOnceTheGradientsHaveBeenComputed) {
  on_ranks([&](Rank& rank, std::size_t index) {
    Gate gate;
    begin_late_backward(rank, index, gate);
    rank.unit.begin_reduce_home([](offload::DeviceSpan) {});
    give_time_for_mistakes();
    gate.open();
    double stall_seconds = 0;
    rank.unit.finish_reduce(stall_seconds);
    for (const float value : rank.floats(rank.unit.gradients_home())) ASSERT_EQ(value, 2.0F);
    rank.unit.consume_gradients();
  });
}

TEST_F(NcclUnits, AreReducedOnceTheGradientsHaveBeenComputed) {
  Gate gate;
  std::array<std::vector<float>, kRanks> sums;
  std::thread reduction([&] {
    on_ranks([&](Rank& rank, std::size_t index) {
      begin_late_backward(rank, index, gate);
      rank.unit.begin_reduce_home(
          [&](offload::DeviceSpan shard) { sums[index] = rank.content(shard); });
      double stall_seconds = 0;
      rank.unit.finish_reduce(stall_seconds);
      rank.unit.consume_gradients();
    });
  });
  while (ranks.nccl->calls("reduce_scatter") < kRanks) std::this_thread::yield();
  gate.open();
  reduction.join();
  for (const std::vector<float>& sum : sums) {
    ASSERT_FALSE(sum.empty());
    EXPECT_EQ(sum.front(), 2.0F);
    EXPECT_EQ(sum.back(), 2.0F);
  }
}

}  // namespace
}  // namespace sluice::zero
