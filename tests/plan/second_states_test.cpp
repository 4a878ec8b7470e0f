// Second states: host memory that lets updates begin before the norm of all gradients is known.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "message_of.hpp"
#include "plans.hpp"
#include "sluice/base/error.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

constexpr ByteBudget kAuto{};
constexpr ByteBudget kNothing{ByteBudget::Kind::bytes, 0};

config::TrainConfig clipped(const ByteBudget& speculative) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 1024, 1024);
  config.gradient_clipping = 1;
  config.sluice.updates.speculative_bytes = speculative;
  return config;
}
std::int64_t units_with(const Plan& plan) {
  return std::count_if(plan.units.begin(), plan.units.end(),
                       [](const UnitPlacement& unit) { return unit.second_states; });
}
std::uint64_t second_states(const Plan& plan) {
  return row_of(plan, "second states").bytes.host;
}

TEST(SecondStates, AreBoughtOnlyWhereAsked) {
  const Plan none = plan_of(clipped(kNothing));
  EXPECT_EQ(units_with(none), 0);
  const Plan all = plan_of(clipped(kAuto));
  EXPECT_EQ(units_with(all), static_cast<std::int64_t>(all.units.size()) - 1);
  EXPECT_FALSE(all.units.front().second_states);  // its gradient comes last
  EXPECT_EQ(second_states(all), all.planned.tiers.host - none.planned.tiers.host);
  // The weights of a split master are a part of the states, and have a second place too: 12 bytes
  // of each parameter, and the rest of each part's last page.
  std::uint64_t elements = 0;
  for (std::size_t u = 1; u < all.layouts.size(); ++u) elements += all.layouts[u].flat_count;
  EXPECT_GE(second_states(all), 12 * elements);
  EXPECT_LE(second_states(all), 12 * elements + all.units.size() * 4 * offload::kPageBytes);
}

TEST(SecondStates, TakeNoMoreThanAskedAndTheLastUnitsComeFirst) {
  const std::uint64_t all = second_states(plan_of(clipped(kAuto)));
  const Plan half = plan_of(clipped({ByteBudget::Kind::percent, 50}));
  EXPECT_LE(second_states(half), all / 2);
  EXPECT_GE(second_states(half), all / 4);
  EXPECT_TRUE(half.units.back().second_states);
  EXPECT_FALSE(half.units[1].second_states);
  EXPECT_TRUE(std::is_sorted(
      half.units.begin(), half.units.end(),
      [](const auto& a, const auto& b) { return a.second_states < b.second_states; }));
  const Plan bytes = plan_of(clipped({ByteBudget::Kind::bytes, all / 2}));
  EXPECT_EQ(second_states(bytes), second_states(half));
}

TEST(SecondStates, LeaveTheBudgetAsItIs) {
  config::TrainConfig config = clipped(kNothing);
  const Plan none = plan_of(config);
  const std::uint64_t spare = 16 * kMiB;
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, none.planned.tiers.host + spare};
  config.sluice.updates.speculative_bytes = {ByteBudget::Kind::bytes, 60 * kMiB};
  const Plan plan = plan_of(config);
  EXPECT_GT(units_with(plan), 0);
  EXPECT_LE(plan.planned.tiers.host, none.planned.tiers.host + spare);
  EXPECT_THAT(plan.choices,
              Contains(HasSubstr("60.0 MiB were asked for, but host_bytes has no more")));
  config::TrainConfig strict = config;
  strict.sluice.strict = true;
  EXPECT_THAT(sluice::test::message_of<DoesNotFit>([&] { plan_of(strict); }),
              HasSubstr("\"strict\": true does not allow: speculative_bytes: "));
  // The model fits where it fitted without.
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, none.least.host_bytes};
  config.sluice.updates.speculative_bytes = kAuto;
  config.sluice.device_bytes = {ByteBudget::Kind::bytes, none.least.device_bytes};
  EXPECT_EQ(refusal(config, model_config(8, 256), roomy_machine()), "");
}

TEST(SecondStates, SayWhyTheyAreOfNoUse) {
  const auto unused_line = [](const config::TrainConfig& config) -> std::string {
    const Plan plan = plan_of(config);
    EXPECT_EQ(units_with(plan), 0);
    for (const std::string& line : plan.choices)
      if (line.starts_with("speculative_bytes: unused")) return line;
    return "no line";
  };
  config::TrainConfig config = clipped(kAuto);
  config.gradient_clipping = 0;
  EXPECT_THAT(unused_line(config), HasSubstr("no update waits for a norm"));
  config = clipped(kAuto);
  config.sluice.overlap = false;
  EXPECT_THAT(unused_line(config), HasSubstr("overlap is off"));
  config = clipped(kAuto);
  config.zero.offload_optimizer.device = Device::nvme;
  config.zero.offload_optimizer.directories = {"/drive"};
  EXPECT_THAT(unused_line(config), HasSubstr("no optimizer states are in host memory"));
}

// On a GPU the optimizer takes no computing power. Backward takes 6 seconds and forward 2.
TEST(SecondStates, HideUpdatesBehindBackwardToo) {
  config::TrainConfig config = clipped(kNothing);
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = config.micro_batch_size;
  config.sluice.activations = config::Activations::recompute;
  MachineRates rates;
  rates.block.first = rates.block.next = {.forward = 0.25, .forward_saving = 0.25, .backward = 0.5};
  const auto seconds = [&](const ByteBudget& speculative, double update_seconds) {
    config.sluice.updates.speculative_bytes = speculative;
    Plan plan = plan_of(config);
    plan.device.gpu = GpuFacts{};
    double elements = 0;
    for (const auto& layout : plan.layouts) elements += static_cast<double>(layout.flat_count);
    rates.update_elements_per_second = elements / update_seconds;
    return predict(plan, rates).step_seconds;
  };
  EXPECT_NEAR(seconds(kNothing, 6), 12, 0.3);  // backward, then the update
  EXPECT_NEAR(seconds(kAuto, 6), 8, 0.3 + 6.0 / 9);
  EXPECT_NEAR(seconds(kNothing, 16), 22, 0.3);
  EXPECT_NEAR(seconds(kAuto, 16), 16, 0.5 + 16.0 / 9);
}

}  // namespace
}  // namespace sluice::plan
