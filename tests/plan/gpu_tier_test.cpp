// The GPU as a tier: where host memory is full, its free memory takes weights, gradients and
// optimizer states.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "message_of.hpp"
#include "plans.hpp"
#include "sluice/plan/largest.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::plan {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

// One pass of one micro-batch, with clipping.
config::TrainConfig some_config(config::MasterFormat master) {
  config::TrainConfig config = train_config(Device::cpu, Device::cpu, 0, 0);
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = 2;
  config.gradient_clipping = 1;
  config.sluice.device_bytes = {};
  config.sluice.master = master;
  return config;
}

// The embedding's gradients are on the device anyway: the head adds to them.
constexpr std::size_t kTied = 1;

std::size_t units_on(const Plan& plan, Tier UnitPlacement::*member, Tier tier) {
  return static_cast<std::size_t>(
      std::count_if(plan.units.begin(), plan.units.end(),
                    [&](const UnitPlacement& unit) { return unit.*member == tier; }));
}

class GpuTier : public testing::TestWithParam<config::MasterFormat> {
 protected:
  GpuTier() : config_(some_config(GetParam())) {
    config_.sluice.host_bytes = {ByteBudget::Kind::bytes, 8 * kGiB};
    roomy_ = make_plan(config_, model_, Placement::configured, machine_);
  }
  // The plan with a share of the host memory that the configuration asks for.
  Plan with_host(double share) {
    host_bytes_ = static_cast<std::uint64_t>(share * double(roomy_.planned.tiers.host));
    config_.sluice.host_bytes = {ByteBudget::Kind::bytes, host_bytes_};
    return make_plan(config_, model_, Placement::configured, machine_);
  }

  const config::ModelConfig model_ = model_config(16, 512);
  MachineFacts machine_ = machine_with_gpu(8 * kGiB);
  config::TrainConfig config_;
  Plan roomy_;
  std::uint64_t host_bytes_ = 0;
};

TEST_P(GpuTier, TakesNothingWhileHostMemorySuffices) {
  EXPECT_EQ(units_on(roomy_, &UnitPlacement::states, Tier::device), 0U);
  EXPECT_EQ(units_on(roomy_, &UnitPlacement::weights, Tier::device), 0U);
  EXPECT_EQ(units_on(roomy_, &UnitPlacement::gradients, Tier::device), kTied);
}

TEST_P(GpuTier, TakesTheCheapestBytesFirst) {
  const Plan plan = with_host(0.95);
  EXPECT_LE(plan.planned.tiers.host, host_bytes_);
  EXPECT_LE(plan.planned.tiers.device, *plan.budget.device_bytes);
  EXPECT_EQ(units_on(plan, &UnitPlacement::states, Tier::device), 0U);
  if (GetParam() == config::MasterFormat::split) {
    // Weights are a part of a split master: alone they would free nothing.
    EXPECT_GT(units_on(plan, &UnitPlacement::gradients, Tier::device), kTied);
    EXPECT_EQ(units_on(plan, &UnitPlacement::weights, Tier::device), 0U);
  } else {
    EXPECT_GT(units_on(plan, &UnitPlacement::weights, Tier::device), 0U);
    EXPECT_EQ(units_on(plan, &UnitPlacement::gradients, Tier::device), kTied);
    EXPECT_EQ(plan.units.back().weights, Tier::device) << "the last units first";
    EXPECT_EQ(plan.units.front().weights, Tier::host);
  }
}

TEST_P(GpuTier, TakesStatesOfAsFewUnitsAsNeeded) {
  const Plan half = with_host(0.5);
  EXPECT_LE(half.planned.tiers.host, host_bytes_);
  EXPECT_LE(half.planned.tiers.device, *half.budget.device_bytes);
  const std::size_t on_device = units_on(half, &UnitPlacement::states, Tier::device);
  EXPECT_GT(on_device, 0U);
  EXPECT_LT(on_device, half.units.size());
  // Weights of a split master go along: they are the upper half of it. Others went before.
  for (const UnitPlacement& unit : half.units) {
    EXPECT_TRUE(unit.states != Tier::device || unit.weights == Tier::device);
  }
  EXPECT_THAT(half.choices,
              Contains(AllOf(StartsWith("optimizer states: the budget of tier host is used up"),
                             HasSubstr(std::to_string(on_device) + " units are on the device"))));
  const Plan third = with_host(0.35);
  EXPECT_GT(units_on(third, &UnitPlacement::states, Tier::device), on_device);
}

TEST_P(GpuTier, IsADowngradeThatStrictRefuses) {
  config_.sluice.strict = true;
  EXPECT_THAT(sluice::test::message_of<DoesNotFit>([&] { with_host(0.5); }),
              HasSubstr("\"strict\": true does not allow: optimizer states: "));
}

TEST_P(GpuTier, ComesBeforeNvme) {
  config_.zero.offload_param.device = Device::nvme;
  config_.zero.offload_param.directories = {"/drive"};
  const Plan plan = with_host(0.5);
  EXPECT_EQ(units_on(plan, &UnitPlacement::states, Tier::nvme), 0U);
  EXPECT_GT(units_on(plan, &UnitPlacement::states, Tier::device), 0U);
  machine_.device.gpu->free_bytes = roomy_.planned.tiers.device * 6 / 5;
  const Plan both = with_host(0.5);
  EXPECT_GT(units_on(both, &UnitPlacement::states, Tier::nvme), 0U);
  EXPECT_LE(both.planned.tiers.host, host_bytes_);
  EXPECT_LE(both.planned.tiers.device, *both.budget.device_bytes);
}

TEST_P(GpuTier, IsNoTierOfTheHostDevice) {
  machine_ = roomy_machine();
  config_.sluice.device_bytes = {ByteBudget::Kind::bytes, 8 * kGiB};
  EXPECT_THROW(with_host(0.5), DoesNotFit);
}

TEST_P(GpuTier, TakesHalfOfTheGpuInLoopsWhoseActivationsAreUnknown) {
  OwnModel own;
  own.layouts = roomy_.layouts;
  for (zero::UnitLayout& layout : own.layouts) layout.borrowed.clear();
  for (std::size_t u = 0; u < own.layouts.size(); ++u) own.calls.push_back({u});
  config_.sluice.host_bytes = {ByteBudget::Kind::bytes, roomy_.planned.tiers.host / 2};
  const auto plan_of = [&] { return make_plan(config_, own, Placement::configured, machine_); };
  const Plan plan = plan_of();
  EXPECT_GT(units_on(plan, &UnitPlacement::states, Tier::device), 0U);
  EXPECT_LE(plan.planned.tiers.host, *plan.budget.host_bytes);
  EXPECT_LE(plan.planned.tiers.device, *plan.budget.device_bytes / 2);

  config_.sluice.device_bytes = {ByteBudget::Kind::bytes, plan.planned.tiers.device * 3 / 2};
  EXPECT_THROW(plan_of(), DoesNotFit) << "the other half is for activations";
  own.activation_bytes = kMiB;
  EXPECT_GT(units_on(plan_of(), &UnitPlacement::states, Tier::device), 0U);

  own.activation_bytes.reset();
  config_.sluice.device_bytes = {};
  config_.zero.offload_param.device = Device::nvme;
  config_.zero.offload_param.directories = {"/drive"};
  EXPECT_EQ(units_on(plan_of(), &UnitPlacement::states, Tier::device), 0U) << "the drive has room";
}

INSTANTIATE_TEST_SUITE_P(Masters, GpuTier,
                         testing::Values(config::MasterFormat::fp32, config::MasterFormat::split),
                         [](const auto& each) {
                           return each.param == config::MasterFormat::split ? "split" : "fp32";
                         });

// Weights are at home on the GPU, so they have the upper halves of split masters anyway.
class HalvesInWeights : public testing::Test {
 protected:
  HalvesInWeights() {
    config_.zero.offload_param.device = Device::none;
    roomy_ = plan(8 * kGiB);
  }
  Plan plan(std::uint64_t host_bytes) {
    config_.sluice.host_bytes = {ByteBudget::Kind::bytes, host_bytes};
    return make_plan(config_, model_config(16, 512), Placement::configured, machine_);
  }
  static std::size_t units_without_half(const Plan& plan) {
    return static_cast<std::size_t>(std::count_if(
        plan.units.begin(), plan.units.end(),
        [&](const UnitPlacement& unit) { return half_copied_to_tile(unit, plan.state_format); }));
  }
  static constexpr std::size_t kSmall = 1;  // units whose halves are smaller than the tests' steps
  // The least plan that keeps all homes of the roomy one, but for upper halves.
  Plan tight() {
    Plan least = roomy_;
    for (std::uint64_t bytes = roomy_.planned.tiers.host;; bytes -= kMiB) {
      Plan next = plan(bytes);
      if (units_on(next, &UnitPlacement::states, Tier::device) > 0 ||
          units_on(next, &UnitPlacement::gradients, Tier::device) > kTied)
        return least;
      least = std::move(next);
    }
  }

  MachineFacts machine_ = machine_with_gpu(8 * kGiB);
  config::TrainConfig config_ = some_config(config::MasterFormat::split);
  Plan roomy_;
};

TEST_F(HalvesInWeights, LeaveHostMemoryWhereItIsShortBeforeAnythingElseDoes) {
  EXPECT_EQ(units_without_half(roomy_), 0U);
  std::size_t before = 0;
  for (std::uint64_t bytes = roomy_.planned.tiers.host;; bytes -= kMiB) {
    const Plan next = plan(bytes);
    EXPECT_LE(next.planned.tiers.host, bytes);
    const std::size_t units = units_without_half(next);
    if (units_on(next, &UnitPlacement::gradients, Tier::device) > kTied) break;
    EXPECT_GE(units, before);
    EXPECT_EQ(units_on(next, &UnitPlacement::states, Tier::host), next.units.size());
    EXPECT_TRUE(units == 0 || half_copied_to_tile(next.units.back(), next.state_format))
        << "the last units first";
    EXPECT_EQ(std::count_if(next.choices.begin(), next.choices.end(),
                            [](const std::string& line) {
                              return line.starts_with("upper halves of the split master: those of");
                            }),
              units > 0 ? 1 : 0);
    before = units;
  }
  EXPECT_GE(before, roomy_.units.size() - kSmall);
}

TEST_F(HalvesInWeights, SaveTwoBytesOfAParameterAndCostATileAndTheLink) {
  const Plan least = tight();
  EXPECT_GE(units_without_half(least), least.units.size() - kSmall);
  std::uint64_t elements = 0;
  std::uint64_t halves = 0;
  for (std::size_t u = 0; u < least.units.size(); ++u) {
    if (!half_copied_to_tile(least.units[u], least.state_format)) continue;
    elements += least.layouts[u].flat_count;
    halves += offload::pool_bytes(2 * least.layouts[u].flat_count);
  }
  EXPECT_EQ(row_of(least, "optimizer states").bytes.host + halves,
            row_of(roomy_, "optimizer states").bytes.host);
  EXPECT_GE(least.rings.update.tile_bytes, 2 * least.rings.update.tile_elements);
  EXPECT_EQ(row_of(least, "update tiles").bytes.host,
            static_cast<std::uint64_t>(least.rings.update.tiles) * least.rings.update.tile_bytes);
  EXPECT_EQ(least.traffic.d2h_bytes, roomy_.traffic.d2h_bytes + 2 * elements);
  EXPECT_EQ(least.traffic.h2d_bytes, roomy_.traffic.h2d_bytes);
}

TEST_F(HalvesInWeights, AreNoDowngrade) {
  const std::uint64_t bytes = tight().planned.tiers.host;
  config_.sluice.strict = true;
  EXPECT_GT(units_without_half(plan(bytes)), 0U);
}

TEST_F(HalvesInWeights, AreThoseOfAGpuAndOfASplitMasterOnly) {
  machine_.device.host_addressable = true;
  machine_.device.gpu.reset();
  config_.sluice.device_bytes = {ByteBudget::Kind::bytes, 8 * kGiB};
  EXPECT_THROW(plan(roomy_.planned.tiers.host * 9 / 10), DoesNotFit);
  machine_ = machine_with_gpu(8 * kGiB);
  config_.sluice.master = config::MasterFormat::fp32;
  const Plan fp32 = plan(roomy_.planned.tiers.host * 9 / 10);
  EXPECT_EQ(units_without_half(fp32), 0U);
}

// Second states change places with the states, so they need all parts in host memory.
TEST_F(HalvesInWeights, AreNotThoseOfUnitsWithSecondStates) {
  config_.sluice.updates.speculative_bytes = {};
  for (std::uint64_t bytes = roomy_.planned.tiers.host * 11 / 10;
       bytes > roomy_.planned.tiers.host * 4 / 5; bytes -= kMiB) {
    for (const UnitPlacement& unit : plan(bytes).units)
      EXPECT_FALSE(unit.second_states && unit.half_in_weights) << bytes;
  }
}

// The drive holds a third of the states: the rest is in host memory and on the GPU.
class SmallDrive : public testing::Test {
 protected:
  SmallDrive() {
    config_.zero.offload_optimizer = config_.zero.offload_param = {};
    config_.zero.offload_optimizer.device = config_.zero.offload_param.device = Device::nvme;
    config_.zero.offload_optimizer.directories =
        config_.zero.offload_param.directories = {"/drive"};
    config_.sluice.durability = Durability::none;
    const Plan asked = plan();
    machine_.free_disk_bytes = {{"/drive", asked.planned.tiers.nvme / 3}};
    machine_.file_systems = {{"/drive", 1}};
    host_bytes_ = 3 * asked.planned.tiers.nvme / 7;
  }
  Plan plan() {
    config_.sluice.host_bytes = {ByteBudget::Kind::bytes, host_bytes_};
    return make_plan(config_, model_config(16, 512), Placement::configured, machine_);
  }

  MachineFacts machine_ = machine_with_gpu(8 * kGiB);
  config::TrainConfig config_ = some_config(config::MasterFormat::fp32);
  std::uint64_t host_bytes_ = 8 * kGiB;
};

TEST_F(SmallDrive, TakesWhatItHasRoomFor) {
  const Plan split = plan();
  for (const DiskNeed& disk : split.directories.disks) EXPECT_FALSE(disk.is_short());
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme})
    EXPECT_GT(units_on(split, &UnitPlacement::states, tier), 0U) << name_of(tier);
  EXPECT_THAT(split.choices, Contains(StartsWith("optimizer states: the drive has room for no "
                                                 "more of them; ")));
}

TEST_F(SmallDrive, IsRefusedWhereACommitWouldBeLost) {
  config_.sluice.durability = Durability::process;
  EXPECT_THROW(plan(), DoesNotFit);
  // A checkpoint on another drive is as good.
  config_.sluice.checkpoints.directory = "/elsewhere";
  machine_.free_disk_bytes.emplace_back("/elsewhere", 64 * kGiB);
  EXPECT_THAT(plan().choices, Contains(StartsWith("commits: none")));
}

TEST_F(SmallDrive, IsRefusedWithoutAGpu) {
  machine_.device = {};
  EXPECT_THROW(plan(), DoesNotFit);
}

// An H100 and 126 GiB of host memory hold: 8.87 B parameters before the GPU was a tier.
TEST(LargestPlan, HoldsTwelveAndAHalfBillionParametersWithAnH100) {
  MachineFacts machine;
  machine.total_memory_bytes = 126 * kGiB;
  machine.available_memory_bytes = 124 * kGiB;
  machine.memlock_bytes = offload::kUnlimited;
  machine.cores = 16;
  machine.device.gpu = GpuFacts{0, "NVIDIA H100 80GB HBM3", 85'017'493'504, 84'400'000'000};
  machine.device.host_addressable = false;
  config::TrainConfig config = some_config(config::MasterFormat::split);
  config.micro_batch_size = config.train_batch_size = 4;
  config.sluice.durability = Durability::none;
  config.sluice.host_bytes = {ByteBudget::Kind::bytes, 116 * kGiB};
  config::ModelConfig model;
  model.n_embd = 4096;
  model.n_head = 32;
  model.n_positions = 1024;
  model.vocab_size = 50'257;
  EXPECT_EQ(largest_models(config, model, machine).size(), 1U) << "no drive is named";
  config.zero.offload_optimizer.device = Device::nvme;
  config.zero.offload_optimizer.directories = {"/drive"};
  machine.free_disk_bytes = {{"/drive", 60 * kGiB}};
  machine.file_systems = {{"/drive", 1}};
  const std::vector<LargestModel> largest = largest_models(config, model, machine);
  ASSERT_EQ(largest.size(), 2U);
  // Weights that are at home on the GPU take no host memory either.
  config.zero.offload_optimizer.device = Device::cpu;
  config.zero.offload_optimizer.directories.clear();
  config.zero.offload_param.device = Device::none;
  const std::vector<LargestModel> on_gpu = largest_models(config, model, machine);
  ASSERT_EQ(on_gpu.size(), 1U);
  EXPECT_EQ(largest[1].nvme_path, "/drive");
  const double in_memory = 1e-9 * static_cast<double>(largest[0].parameters);
  const double with_drive = 1e-9 * static_cast<double>(largest[1].parameters);
  EXPECT_GE(in_memory, 12.5);
  const double weights_on_gpu = 1e-9 * static_cast<double>(on_gpu[0].parameters);
  EXPECT_GE(weights_on_gpu, 12.5) << "the halves of split masters are in these weights only";
  EXPECT_GE(with_drive, in_memory + 3) << "a parameter takes 12 bytes of the drive, 4 of memory";
  std::printf(
      "%.2f B parameters in memory, %.2f B with weights at home on the GPU, %.2f B with 60 GiB of "
      "a "
      "drive\n",
      in_memory, weights_on_gpu, with_drive);
}

}  // namespace
}  // namespace sluice::plan
