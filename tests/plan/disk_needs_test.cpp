// Room on the drives: what a plan says that its directories need.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>

#include "plans.hpp"
#include "sluice/plan/machine.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {
namespace {

// The old one goes when the new one is whole.
TEST(DiskNeeds, HasRoomForTheCheckpointsThatARunKeepsAndTheOneBeingWritten) {
  auto config = train_config(Device::cpu, Device::cpu, 512, 512);
  config.sluice.checkpoints.directory = "/saved";
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/saved", 1024 * kGiB}};
  const auto need = [&](std::int64_t every, std::int64_t keep) {
    config.sluice.checkpoints.every = every;
    config.sluice.checkpoints.keep = keep;
    const Plan plan = make_plan(config, model_config(4, 256), Placement::configured, machine);
    return plan.directories.disks.front().needed_bytes;
  };
  const std::uint64_t one = need(0, 2);  // at the end
  EXPECT_EQ(need(5, 1), 2 * one);
  EXPECT_EQ(need(5, 2), 3 * one);
  EXPECT_EQ(need(5, 50), 3 * one) << "how many a run writes is unknown";
  const auto fits = [&](std::uint64_t free, std::uint64_t there) {
    machine.free_disk_bytes = {{"/saved", free + there}};
    machine.checkpoint_bytes = there;
    return refusal(config, model_config(4, 256), machine).empty();
  };
  need(5, 2);
  EXPECT_TRUE(fits(3 * one, 0));
  EXPECT_FALSE(fits(3 * one - 1, 0));
  EXPECT_TRUE(fits(one, 2 * one)) << "the two that are there stay until the next one is whole";
  EXPECT_FALSE(fits(one - 1, 2 * one));
  EXPECT_FALSE(fits(one - 1, 9 * one)) << "the run replaces two of them";
}

TEST(DiskNeeds, AreNotThoseOfCheckpointsThatARunDoesNotWrite) {
  auto config = train_config(Device::cpu, Device::cpu, 512, 512);
  config.sluice.checkpoints.directory = "/saved";
  MachineFacts machine = roomy_machine();
  machine.free_disk_bytes = {{"/saved", kMiB}};
  EXPECT_NE(
      refusal(config, model_config(4, 256), machine)
          .find(" and 1.00 MiB are available (free, or in files there that the run replaces)"),
      std::string::npos);
  machine.writes_checkpoints = false;
  const Plan plan = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_TRUE(plan.directories.disks.empty());
}

TEST(DiskNeeds, SaysWhenAllCheckpointsThatARunKeepsDoNotFit) {
  auto config = train_config(Device::cpu, Device::cpu, 512, 512);
  config.sluice.checkpoints = {.directory = "/saved", .every = 5, .keep = 50};
  MachineFacts machine = roomy_machine();
  const auto line = [&](std::uint64_t free) {
    machine.free_disk_bytes = {{"/saved", free}};
    std::string lines;
    for (const std::string& choice :
         make_plan(config, model_config(4, 256), Placement::configured, machine).choices)
      if (choice.starts_with("keep: ")) lines += choice;
    return lines;
  };
  EXPECT_EQ(line(1024 * kGiB), "");
  EXPECT_NE(line(kGiB).find("keep: 50 checkpoints and the one being written take "),
            std::string::npos);
}

TEST(DiskNeeds, CountsWholePagesOfTheScratchFile) {
  auto config = train_config(Device::nvme, Device::nvme, 64, 64);
  auto model = model_config(4, 24);
  model.n_positions = 33;     // unit inputs of 3,168 bytes
  std::optional<Plan> least;  // with the least memory: unit inputs have to go to NVMe
  for (config::ByteBudget* budget : {&config.sluice.device_bytes, &config.sluice.host_bytes}) {
    std::uint64_t fits = budget->value;
    for (; refusal(config, model, roomy_machine()).empty(); budget->value = fits * 99 / 100) {
      fits = budget->value;
      least = make_plan(config, model, Placement::configured, roomy_machine());
    }
    budget->value = fits;
  }
  ASSERT_TRUE(least);
  std::uint64_t inputs = 0;
  for (const UnitPlacement& unit : least->units)
    inputs +=
        static_cast<std::uint64_t>(std::count(unit.inputs.begin(), unit.inputs.end(), Tier::nvme));
  ASSERT_GT(inputs, 0U);
  EXPECT_EQ(row_of(*least, "unit inputs").bytes.nvme, inputs * offload::kPageBytes);
}

}  // namespace
}  // namespace sluice::plan
