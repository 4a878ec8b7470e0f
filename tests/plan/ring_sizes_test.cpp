// The number and size of the tiles of the optimizer step, and the cache that makes them smaller.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plans.hpp"

namespace sluice::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

TEST(RingSizes, FollowFromDrivesAndThreads) {
  const auto ring = [](int cores, const std::vector<std::string>& further, std::uint64_t host_mib,
                       std::optional<std::int64_t> buffers = {}) {
    auto config = train_config(Device::nvme, Device::nvme, 4096, host_mib);
    config.sluice.cache_bytes = {ByteBudget::Kind::bytes, 0};
    std::vector<std::string>& directories = config.zero.offload_optimizer.directories;
    directories.insert(directories.end(), further.begin(), further.end());
    config.zero.offload_optimizer.buffer_count = buffers;
    MachineFacts machine = roomy_machine();
    machine.cores = cores;
    const Plan plan = make_plan(config, model_config(2, 2048), Placement::configured, machine);
    const bool told = std::any_of(plan.choices.begin(), plan.choices.end(), [](const auto& line) {
      return line.starts_with("update tiles: ");
    });
    EXPECT_EQ(told, !buffers && (plan.rings.update.tiles != 3 ||
                                 plan.rings.update.tile_elements > 1U << 20U));
    return std::pair(plan.rings.update.tile_elements >> 20U, plan.rings.update.tiles);
  };
  using Ring = std::pair<std::uint64_t, int>;  // Mi elements, tiles
  const std::vector<std::string> three = {"/two", "/three", "/four"};
  EXPECT_EQ(ring(2, {}, 8192), Ring(1, 3));      // one drive's queue holds 8 MiB, a tile 12
  EXPECT_EQ(ring(2, three, 8192), Ring(1, 7));   // 32 MiB in three tiles each way
  EXPECT_EQ(ring(16, {}, 8192), Ring(4, 4));     // four pieces for each thread, two tiles computed
  EXPECT_EQ(ring(16, three, 8192), Ring(4, 4));  // a tile of 48 MiB fills all queues
  EXPECT_EQ(ring(64, three, 8192), Ring(16, 4));
  EXPECT_EQ(ring(64, three, 700), Ring(4, 4));       // half of the host budget is for homes
  EXPECT_EQ(ring(16, three, 8192, 20), Ring(4, 5));  // as the configuration asks
}

// A tile waits for the copy of its weights to a GPU, and then for a thread to see the copy's end.
TEST(RingSizes, AreMoreWhereUpdatesSendWeightsToAGpu) {
  const auto plan_with = [](Device states, Device weights, bool gpu) {
    config::TrainConfig config = train_config(states, weights, 8192, 8192);
    config.sluice.master = config::MasterFormat::split;
    config.sluice.cache_bytes = {ByteBudget::Kind::bytes, 0};
    MachineFacts machine = roomy_machine();
    machine.cores = 16;
    if (gpu) {
      machine.device.host_addressable = false;
      machine.device.gpu = GpuFacts{0, "NVIDIA Test", 8 * kGiB, 8 * kGiB};
    }
    return make_plan(config, model_config(2, 2048), Placement::configured, machine);
  };
  const Plan sends = plan_with(Device::cpu, Device::none, true);
  EXPECT_EQ(sends.rings.update.tiles, 8);
  EXPECT_THAT(sends.choices,
              Contains(AllOf(StartsWith("update tiles: 8 of "), HasSubstr("copied to the GPU"))));
  EXPECT_EQ(row_of(sends, "update tiles").bytes.host, 8 * sends.rings.update.tile_bytes);
  EXPECT_EQ(plan_with(Device::cpu, Device::none, false).rings.update.tiles, 4);
  EXPECT_EQ(plan_with(Device::cpu, Device::cpu, true).rings.update.tiles, 4);
  EXPECT_EQ(plan_with(Device::nvme, Device::none, true).rings.update.tiles, 4) << "as drives ask";
}

// On a drive a small model saves memory, so its tiles take no more than an eighth of it.
TEST(RingSizes, OfASmallModelAreASmallPartOfIt) {
  const auto ring = [](std::int64_t layers, std::int64_t width) {
    auto config = train_config(Device::nvme, Device::cpu, 4096, 4096);
    config.sluice.cache_bytes = {ByteBudget::Kind::bytes, 0};
    return make_plan(config, model_config(layers, width), Placement::configured, roomy_machine())
        .rings.update;
  };
  EXPECT_EQ(ring(4, 256).tile_elements, 1U << 19U);  // no less has a checksum of its own
  EXPECT_EQ(ring(4, 256).read_ahead_tiles, 1);       // of 5 MiB; 3 M parameters have 50 MiB
  EXPECT_EQ(ring(4, 1024).tile_elements, 1U << 20U);
  EXPECT_EQ(ring(4, 1024).read_ahead_tiles, 13);  // a unit
}

// Cached states need no room in a tile, so a run that has all of them cached may need less memory
// than one with tiles to read them.
TEST(Cache, HoldsAllStatesWhereThisFitsWithTheTilesThatAreLeft) {
  const auto plan_of = [](const config::TrainConfig& config, std::int64_t width) {
    return make_plan(config, model_config(1, width), Placement::configured, roomy_machine());
  };
  for (const std::int64_t width : {64, 256}) {
    auto config = train_config(Device::nvme, Device::cpu, 4096, 4096);
    config.gradient_clipping = 1;
    const Plan uncached = plan_of(config, width);
    for (const ByteBudget& asked :
         {ByteBudget{ByteBudget::Kind::percent, 100}, ByteBudget{ByteBudget::Kind::automatic, 0}}) {
      auto cached = config;
      cached.sluice.cache_bytes = asked;
      const Plan roomy = plan_of(cached, width);
      EXPECT_LT(roomy.least.host_bytes, uncached.least.host_bytes);
      cached.sluice.strict = true;
      cached.sluice.host_bytes = {ByteBudget::Kind::bytes, roomy.planned.tiers.host};
      const Plan tight = plan_of(cached, width);
      EXPECT_EQ(tight.planned.tiers.host, roomy.planned.tiers.host);
      EXPECT_EQ(tight.traffic.nvme_read_bytes, 0U);
    }
  }
}

}  // namespace
}  // namespace sluice::plan
