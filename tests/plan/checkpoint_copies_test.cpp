// Copies of states: host memory that lets steps go on while a checkpoint is written.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "message_of.hpp"
#include "plans.hpp"
#include "sluice/base/error.hpp"

namespace sluice::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ByteBudget kAuto{};

config::TrainConfig with_checkpoints(const ByteBudget& copies, Device states = Device::cpu) {
  config::TrainConfig config = train_config(states, Device::cpu, 1024, 1024);
  config.sluice.checkpoints = {.directory = "/checkpoints", .every = 50, .copy_bytes = copies};
  return config;
}
std::int64_t units_with(const Plan& plan) {
  return std::count_if(plan.units.begin(), plan.units.end(),
                       [](const UnitPlacement& unit) { return unit.checkpoint_copy; });
}
std::uint64_t copies_row(const Plan& plan) {
  return row_of(plan, "checkpoint copies").bytes.host;
}

TEST(CheckpointCopies, AreOfAllStatesWhereTheBudgetHasRoom) {
  config::TrainConfig none = with_checkpoints(kAuto);
  none.sluice.checkpoints.every = 0;
  const Plan without = plan_of(none);
  EXPECT_EQ(units_with(without), 0);
  EXPECT_THAT(without.choices, Not(Contains(HasSubstr("checkpoint_bytes"))));
  const Plan all = plan_of(with_checkpoints(kAuto));
  EXPECT_EQ(units_with(all), static_cast<std::int64_t>(all.units.size()));
  EXPECT_EQ(copies_row(all), all.planned.tiers.host - without.planned.tiers.host);
  // 12 bytes of each parameter, and the rest of each part's last page.
  std::uint64_t elements = 0;
  for (const auto& layout : all.layouts) elements += layout.flat_count;
  EXPECT_GE(copies_row(all), 12 * elements);
  EXPECT_LE(copies_row(all), 12 * elements + all.units.size() * 4 * offload::kPageBytes);
}

TEST(CheckpointCopies, TakeNoMoreThanAskedAndTheLastUnitsComeFirst) {
  const std::uint64_t all = copies_row(plan_of(with_checkpoints(kAuto)));
  const Plan half = plan_of(with_checkpoints({ByteBudget::Kind::percent, 50}));
  EXPECT_LE(copies_row(half), all / 2);
  EXPECT_GE(copies_row(half), all / 4);
  EXPECT_TRUE(half.units.back().checkpoint_copy);
  EXPECT_FALSE(half.units.front().checkpoint_copy);
  EXPECT_THAT(half.choices, Contains(HasSubstr("wait until these are written")));
}

TEST(CheckpointCopies, LeaveTheBudgetAsItIs) {
  config::TrainConfig config = with_checkpoints({ByteBudget::Kind::bytes, 0});
  const Plan none = plan_of(config);
  EXPECT_EQ(units_with(none), 0);
  EXPECT_THAT(none.choices, Contains(HasSubstr("0 of 10 units are written to a checkpoint")));
  const std::uint64_t spare = 16 * kMiB;
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, none.planned.tiers.host + spare};
  config.sluice.checkpoints.copy_bytes = {ByteBudget::Kind::bytes, 60 * kMiB};
  const Plan plan = plan_of(config);
  EXPECT_GT(units_with(plan), 0);
  EXPECT_LE(plan.planned.tiers.host, none.planned.tiers.host + spare);
  EXPECT_THAT(plan.choices,
              Contains(HasSubstr("60.0 MiB were asked for, but host_bytes has no more")));
  config::TrainConfig strict = config;
  strict.sluice.strict = true;
  EXPECT_THAT(sluice::test::message_of<DoesNotFit>([&] { plan_of(strict); }),
              HasSubstr("\"strict\": true does not allow: checkpoint_bytes: "));
}

TEST(CheckpointCopies, SayWhyTheyAreOfNoUse) {
  const auto has_line = [](const config::TrainConfig& config, const std::string& why) {
    const Plan plan = plan_of(config);
    EXPECT_EQ(units_with(plan), 0);
    EXPECT_THAT(plan.choices, Contains(HasSubstr("checkpoint_bytes: unused, because " + why)));
  };
  has_line(with_checkpoints({ByteBudget::Kind::percent, 50}, Device::nvme), "all states are on");
  config::TrainConfig config = with_checkpoints({ByteBudget::Kind::percent, 50});
  config.sluice.overlap = false;
  has_line(config, "overlap is off");
}

// No device copies from or to them.
TEST(CheckpointCopies, AreNotPinned) {
  config::TrainConfig config = with_checkpoints(kAuto);
  config.zero.offload_optimizer.pin_memory = true;
  const Plan plan = plan_of(config);
  ASSERT_TRUE(plan.planned.pinned_staging);
  EXPECT_EQ(plan.planned.pinned_bytes, plan.planned.tiers.host - copies_row(plan));
}

}  // namespace
}  // namespace sluice::plan
