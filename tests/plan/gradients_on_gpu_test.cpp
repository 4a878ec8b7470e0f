// Gradients that wait on the GPU for their updates, beside states in host memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "plans.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// No clipping: updates begin as gradients arrive.
config::TrainConfig some_config() {
  config::TrainConfig config = train_config(Device::cpu, Device::none, 8192, 8192);
  config.gradient_clipping = 0;
  config.sluice.passes.each = config.gradient_accumulation_steps;
  return config;
}
// Beside the embedding's, which the head adds to.
std::int64_t waiting_on_gpu(const Plan& plan) {
  return std::count_if(plan.units.begin() + 1, plan.units.end(), [](const UnitPlacement& unit) {
    return unit.gradients == Tier::device && unit.states == Tier::host;
  });
}
std::uint64_t kept_blocks(const Plan& plan) {
  return row_of(plan, "kept blocks").bytes.device;
}

constexpr std::int64_t kAll = 9;  // eight blocks and the head

TEST(GradientsOnGpu, StayWhereUpdatesBeginAsTheyArrive) {
  const Plan plan = gpu_plan_of(some_config());
  EXPECT_EQ(waiting_on_gpu(plan), kAll);
  EXPECT_THAT(plan.choices, Contains(StartsWith("gradients on the GPU: those of 9 of 10 units")));
  EXPECT_THAT(plan.choices, Not(Contains(HasSubstr("used up"))));
  std::uint64_t bytes = 0;
  for (const zero::UnitLayout& layout : plan.layouts)
    bytes += offload::pool_bytes(2 * layout.flat_count);
  EXPECT_EQ(row_of(plan, "gradients").bytes.device, bytes);
  EXPECT_EQ(row_of(plan, "gradients").bytes.host, 0U);
  EXPECT_EQ(row_of(plan, "gradient slots").bytes.host, 0U);
  EXPECT_EQ(row_of(plan, "gradient buffers").bytes.device, 0U) << "each is made at home";
  EXPECT_GE(plan.rings.update.tile_bytes, 2 * plan.rings.update.tile_elements);
  EXPECT_EQ(row_of(plan, "update tiles").bytes.host,
            static_cast<std::uint64_t>(plan.rings.update.tiles) * plan.rings.update.tile_bytes);
}

TEST(GradientsOnGpu, LeaveWhereAnUpdateWaitsForTheNormOrNeedsNoTile) {
  const auto none = [](const config::TrainConfig& config) {
    const Plan plan = gpu_plan_of(config);
    EXPECT_EQ(waiting_on_gpu(plan), 0);
    EXPECT_THAT(plan.choices, Not(Contains(StartsWith("gradients on the GPU: "))));
  };
  config::TrainConfig config = some_config();
  config.gradient_clipping = 1;
  none(config);
  config = some_config();
  config.bf16 = false;
  config.fp16.enabled = true;
  none(config);
  config = some_config();
  config.zero.offload_param.device = Device::cpu;
  none(config);
  config = some_config();
  config.sluice.overlap = false;
  none(config);
  config = some_config();
  config.zero.offload_optimizer.device = Device::nvme;
  config.zero.offload_optimizer.directories = {"/drive"};
  EXPECT_EQ(waiting_on_gpu(gpu_plan_of(config)), 0);
}

// An update that begins before the norm is known does not wait for it.
TEST(GradientsOnGpu, StayWhereUnitsHaveSecondStates) {
  config::TrainConfig config = some_config();
  config.gradient_clipping = 1;
  config.sluice.updates.speculative_bytes = {};
  const Plan plan = gpu_plan_of(config);
  for (const UnitPlacement& unit : plan.units)
    EXPECT_TRUE(unit.gradients == Tier::device || !unit.second_states);
  EXPECT_EQ(waiting_on_gpu(plan), kAll);
}

// They take what the rest leaves: activations, kept blocks, states on the GPU.
TEST(GradientsOnGpu, TakeOnlyRoomThatNothingElseWants) {
  for (const double ratio : {1.0, 0.5}) {
    config::TrainConfig config = some_config();
    config.zero.offload_optimizer.ratio = ratio;
    const Plan roomy = gpu_plan_of(config);
    const auto with = [&](std::uint64_t device_bytes, double clipping) {
      config.sluice.device_bytes.value = device_bytes;
      config.gradient_clipping = clipping;
      return gpu_plan_of(config);
    };
    std::int64_t before = kAll;
    std::int64_t partly = 0;
    for (std::uint64_t bytes = roomy.planned.tiers.device; bytes > roomy.least.device_bytes;
         bytes -= kMiB) {
      const Plan plan = with(bytes, 0);
      ASSERT_LE(plan.planned.tiers.device, bytes);
      const std::int64_t waiting = waiting_on_gpu(plan);
      partly += waiting > 0 && waiting < before ? 1 : 0;
      before = std::max<std::int64_t>(waiting, 1);
      if (waiting == 0) continue;
      const Plan waits = with(bytes, 1);  // its gradients leave
      EXPECT_EQ(waiting_on_gpu(waits), 0);
      for (std::size_t u = 0; u < plan.units.size(); ++u) {
        EXPECT_EQ(plan.units[u].activations_saved, waits.units[u].activations_saved) << bytes;
        EXPECT_EQ(plan.units[u].states, waits.units[u].states) << bytes;
        EXPECT_EQ(plan.units[u].weights, Tier::device);
      }
    }
    EXPECT_GT(partly, 0);
    EXPECT_EQ(waiting_on_gpu(with(roomy.least.device_bytes, 0)), 0) << "the GPU is full";
  }
}

// The first units win most: their gradients come last, and their weights are needed first.
TEST(GradientsOnGpu, AreThoseOfTheFirstUnitsWhereNotAllFit) {
  config::TrainConfig config = some_config();
  const Plan roomy = gpu_plan_of(config);
  config.sluice.device_bytes.value =
      roomy.planned.tiers.device - kept_blocks(roomy) - row_of(roomy, "gradients").bytes.device / 3;
  const Plan some = gpu_plan_of(config);
  EXPECT_GT(waiting_on_gpu(some), 0);
  EXPECT_LT(waiting_on_gpu(some), kAll);
  EXPECT_EQ(some.units[1].gradients, Tier::device);
  EXPECT_EQ(some.units[8].gradients, Tier::host) << "the last block; the head is small";
  EXPECT_GT(some.rings.gradient_slots, 0);
}

TEST(GradientsOnGpu, ArePredictedNoSlower) {
  MachineRates rates;
  rates.block.first =
      rates.block.next = {.forward = 0.01, .forward_saving = 0.01, .backward = 0.02};
  rates.update_elements_per_second = 1e8;
  rates.copy_bytes_per_second = 4e9;
  const FindRates find = [&](const Plan&) { return std::optional(rates); };
  config::TrainConfig config = some_config();
  const auto plan_by_rates = [&] { return gpu_plan_of(config, machine_with_gpu(64 * kGiB), find); };
  EXPECT_EQ(waiting_on_gpu(plan_by_rates()), kAll);
  // fp32 gradients take twice the bytes of weights. Where the link bounds updates, they leave
  // during backward.
  config.fp32_gradient_sums = true;
  EXPECT_EQ(waiting_on_gpu(plan_by_rates()), kAll);
  rates.copy_bytes_per_second = 1.5e8;
  const Plan slow_link = plan_by_rates();
  EXPECT_EQ(waiting_on_gpu(slow_link), 0);
  const Plan stay = gpu_plan_of(config);
  EXPECT_EQ(stay.traffic.d2h_bytes, slow_link.traffic.d2h_bytes) << "no more bytes cross the link";
  EXPECT_EQ(stay.traffic.h2d_bytes, slow_link.traffic.h2d_bytes);
  EXPECT_LT(stay.planned.tiers.host, slow_link.planned.tiers.host);
  EXPECT_THAT(slow_link.choices,
              Contains(StartsWith("faster: gradients leave the GPU during backward: ")));
}

}  // namespace
}  // namespace sluice::plan
