// Tiles on the GPU for updates that the GPU computes ("gpu_updates").

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plans.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/plan/tile_layout.hpp"

namespace sluice::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

config::TrainConfig asking(Device states, Device weights) {
  config::TrainConfig config = train_config(states, weights, 1024, 1024);
  config.sluice.updates.on_gpu = true;
  return config;
}
TierBytes tiles_of(const Plan& plan) {
  return row_of(plan, "update tiles of the GPU").bytes;
}
TierBytes flags_of(const Plan& plan) {
  return row_of(plan, "flags of the GPU's updates").bytes;
}

TEST(GpuUpdates, HaveTilesOnTheGpuWhereAsked) {
  config::TrainConfig config = asking(Device::cpu, Device::none);
  const Plan plan = gpu_plan_of(config);
  const UpdateRing& ring = plan.rings.update;
  EXPECT_EQ(ring.device_tiles, 8);
  // The lower half, two moments and the gradient; the weights are on the GPU.
  EXPECT_GE(ring.device_tile_bytes, 12 * ring.tile_elements);
  EXPECT_LE(ring.device_tile_bytes, 12 * ring.tile_elements + 6 * offload::kPageBytes);
  EXPECT_EQ(tiles_of(plan).device, 8 * ring.device_tile_bytes);
  EXPECT_EQ(flags_of(plan).device, offload::kPageBytes);
  EXPECT_EQ(flags_of(plan).host, offload::kPageBytes);
  EXPECT_GE(ring.tiles, 12);
  EXPECT_THAT(plan.choices, Contains(StartsWith("gpu_updates: the GPU updates part of 10 of 10")));
  config.sluice.updates.on_gpu = false;
  const Plan without = gpu_plan_of(config);
  EXPECT_EQ(without.rings.update.device_tiles, 0);
  EXPECT_EQ(tiles_of(without).device + flags_of(without).device, 0U);
  EXPECT_THAT(without.choices, testing::Not(Contains(HasSubstr("gpu_updates"))));
}

TEST(GpuUpdates, SayWhyThereAreNone) {
  const auto why = [](const Plan& plan) {
    EXPECT_EQ(plan.rings.update.device_tiles, 0);
    for (const std::string& line : plan.choices)
      if (line.starts_with("gpu_updates: unused")) return line;
    return std::string();
  };
  EXPECT_THAT(why(plan_of(asking(Device::cpu, Device::none))), HasSubstr("the device is the host"));
  for (const Device weights : {Device::cpu, Device::nvme}) {
    EXPECT_THAT(why(gpu_plan_of(asking(Device::cpu, weights))),
                HasSubstr("no unit has its weights at home on the GPU"));
  }
  EXPECT_THAT(why(gpu_plan_of(asking(Device::nvme, Device::none))),
              HasSubstr("and its states in host memory"));
  config::TrainConfig config = asking(Device::cpu, Device::none);
  config.sluice.overlap = false;
  EXPECT_THAT(why(gpu_plan_of(config)), HasSubstr("overlap is off"));
  config.sluice.overlap = true;
  config.sluice.device_bytes.value = gpu_plan_of(config).least.device_bytes;
  EXPECT_THAT(why(gpu_plan_of(config)), testing::AnyOf(HasSubstr("no room for 3 tiles"),
                                                       HasSubstr("no unit has its weights")));
}

TEST(GpuUpdates, FitIntoTheirBudget) {
  config::TrainConfig config = asking(Device::cpu, Device::none);
  const std::uint64_t least = gpu_plan_of(config).least.device_bytes;
  int fewest = 8;
  for (std::uint64_t more = 0; more < 256 * kMiB; more += kMiB) {
    config.sluice.device_bytes.value = least + more;
    const Plan plan = gpu_plan_of(config);
    EXPECT_LE(plan.planned.tiers.device, least + more);
    EXPECT_LE(plan.planned.tiers.host, config.sluice.host_bytes.value);
    const int tiles = plan.rings.update.device_tiles;
    EXPECT_TRUE(tiles == 0 || tiles >= 3) << tiles;
    if (tiles > 0) fewest = std::min(fewest, tiles);
  }
  EXPECT_LT(fewest, 8);  // some of these budgets have room for a few tiles
}

// Cores and GPU share an update. The GPU's part takes 12 bytes of an element over the link each
// way.
TEST(GpuUpdates, ArePredictedToEndWithThoseOfTheCores) {
  config::TrainConfig config = asking(Device::cpu, Device::none);
  MachineRates rates;
  rates.block.first =
      rates.block.next = {.forward = 1e-3, .forward_saving = 1e-3, .backward = 2e-3};
  rates.update_elements_per_second = 1e6;
  rates.copy_bytes_per_second = 14e6;  // 2 for a weight of the cores, 12 for the states
  const double together = predict(gpu_plan_of(config), rates).update_seconds;
  config.sluice.updates.on_gpu = false;
  const double alone = predict(gpu_plan_of(config), rates).update_seconds;
  EXPECT_NEAR(together / alone, 0.5, 1e-3);
}

}  // namespace
}  // namespace sluice::plan
