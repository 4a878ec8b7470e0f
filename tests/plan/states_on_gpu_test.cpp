// Optimizer states that a GPU keeps and updates: what offload_optimizer's "ratio" leaves to it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "message_of.hpp"
#include "plans.hpp"
#include "sluice/base/error.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/prediction.hpp"

namespace sluice::plan {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

config::TrainConfig asking(double ratio, Device weights = Device::cpu) {
  config::TrainConfig config = train_config(Device::cpu, weights, 1024, 1024);
  config.gradient_clipping = 1;
  config.zero.offload_optimizer.ratio = ratio;
  return config;
}
std::size_t units_on_gpu(const Plan& plan) {
  return static_cast<std::size_t>(
      std::count_if(plan.units.begin(), plan.units.end(), device_has_all_of));
}
// Elements of these units, of all.
double share_of(const Plan& plan, std::size_t units) {
  double some = 0, all = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const auto count = static_cast<double>(plan.layouts[u].flat_count);
    all += count;
    some += u < units ? count : 0;
  }
  return some / all;
}

// Plans of one budget: all states in host memory, and as many on the GPU as fit.
struct Both {
  Plan without, with;
};
Both plans_of(std::uint64_t device_bytes,
              const MachineFacts& machine = machine_with_gpu(8 * kGiB)) {
  config::TrainConfig config = asking(1);
  config.sluice.passes.each = 4;
  config.sluice.device_bytes.value = device_bytes;
  Plan without = gpu_plan_of(config, machine);
  config.zero.offload_optimizer.ratio = 0;
  return {std::move(without), gpu_plan_of(config, machine)};
}

TEST(StatesOnGpu, AreTheShareThatIsAskedForFromTheFirstUnitOn) {
  for (const double ratio : {0.0, 0.3, 0.5, 0.75}) {
    SCOPED_TRACE(ratio);
    const Plan plan = gpu_plan_of(asking(ratio));
    const std::size_t units = units_on_gpu(plan);
    EXPECT_LE(share_of(plan, units), 1 - ratio + 1e-9);
    EXPECT_TRUE(units == plan.units.size() || share_of(plan, units + 1) > 1 - ratio);
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      EXPECT_EQ(device_has_all_of(plan.units[u]), u < units) << u;
      EXPECT_EQ(plan.units[u].states, u < units ? Tier::device : Tier::host) << u;
    }
    EXPECT_THAT(plan.choices,
                Contains(StartsWith("ratio: the GPU keeps and updates the states of " +
                                    std::to_string(units) + " of 10 units")));
    EXPECT_THAT(plan.choices, Not(Contains(HasSubstr("is used up"))));
    EXPECT_LE(plan.planned.tiers.device, *plan.budget.device_bytes);
  }
}

TEST(StatesOnGpu, AreNoneByDefault) {
  const Plan plan = gpu_plan_of(asking(1));
  EXPECT_EQ(units_on_gpu(plan), 0U);
  EXPECT_THAT(plan.choices, Not(Contains(StartsWith("ratio"))));
}

// Neither activations nor other homes make room for them.
TEST(StatesOnGpu, TakeWhatTheRestLeaves) {
  std::size_t fewest = 10, most = 0;
  for (std::uint64_t device_bytes = 120 * kMiB; device_bytes < 400 * kMiB;
       device_bytes += 8 * kMiB) {
    SCOPED_TRACE(device_bytes);
    const auto [without, plan] = plans_of(device_bytes);
    const std::size_t units = units_on_gpu(plan);
    fewest = std::min(fewest, units);
    most = std::max(most, units);
    EXPECT_LE(plan.planned.tiers.device, device_bytes);
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      EXPECT_EQ(plan.units[u].activations_saved, without.units[u].activations_saved) << u;
      EXPECT_EQ(plan.units[u].inputs, without.units[u].inputs) << u;
    }
    const bool all = units == plan.units.size();
    const auto is_cut = [](const std::string& line) {
      return line.starts_with("ratio: ") && line.ends_with("no more room");
    };
    EXPECT_EQ(std::ranges::any_of(plan.choices, is_cut), !all);
  }
  EXPECT_EQ(fewest, 0U);
  EXPECT_EQ(most, 10U);
}

// Where host memory is short, gradients of the last units go to the GPU. They need not with the
// states of the first units there.
TEST(StatesOnGpu, MakeRoomInHostMemory) {
  config::TrainConfig config = asking(1, Device::none);
  const std::uint64_t enough = gpu_plan_of(config).planned.tiers.host;
  std::size_t promoted = 0;
  for (const double share : {0.99, 0.95, 0.9, 0.8, 0.5}) {
    SCOPED_TRACE(share);
    config.sluice.host_bytes.value =
        static_cast<std::uint64_t>(share * static_cast<double>(enough));
    config.zero.offload_optimizer.ratio = 1;
    for (const UnitPlacement& unit : gpu_plan_of(config).units)
      promoted += unit.gradients == Tier::device ? 1 : 0;
    config.zero.offload_optimizer.ratio = 0.1;
    const Plan plan = gpu_plan_of(config);
    EXPECT_GE(units_on_gpu(plan), 7U);
    EXPECT_LE(plan.planned.tiers.host, config.sluice.host_bytes.value);
    EXPECT_THAT(plan.choices, Not(Contains(HasSubstr("no more room"))));
  }
  EXPECT_GT(promoted, 10U);
}

// Blocks of the GPU's memory that stay mapped keep their room.
TEST(StatesOnGpu, LeaveRoomForKeptBlocks) {
  const auto kept = [](const Plan& plan) { return row_of(plan, "kept blocks").bytes.device; };
  MachineFacts machine = machine_with_gpu(8 * kGiB);
  machine.device.gpu->page_bytes = 2 * kMiB;
  for (std::uint64_t device_bytes = 500 * kMiB; device_bytes < 800 * kMiB;
       device_bytes += 20 * kMiB) {
    SCOPED_TRACE(device_bytes);
    const auto [without, plan] = plans_of(device_bytes, machine);
    EXPECT_EQ(kept(plan), kept(without));
    EXPECT_LE(plan.planned.tiers.device, device_bytes);
  }
}

TEST(StatesOnGpu, AreNoDowngradeWhereTheShareIsSmallerThanAUnit) {
  config::TrainConfig config = asking(0.999);
  EXPECT_THAT(gpu_plan_of(config).choices, Contains(HasSubstr("smaller than the first unit")));
  config.sluice.strict = true;
  EXPECT_NO_THROW(gpu_plan_of(config)) << "nothing was asked for that is not given";
}

TEST(StatesOnGpu, AreNoneWhereTheBuildHasNoKernels) {
  MachineFacts machine = machine_with_gpu(8 * kGiB);
  machine.device.has_update_kernels = false;
  config::TrainConfig config = asking(0, Device::none);
  const Plan plan = gpu_plan_of(config, machine);
  EXPECT_EQ(units_on_gpu(plan), 0U);
  EXPECT_THAT(plan.choices,
              Contains(HasSubstr("ratio: unused, because this build has no kernels")));
  EXPECT_FALSE(plan.device_updates());
  config.sluice.updates.on_gpu = true;
  EXPECT_THAT(gpu_plan_of(config, machine).choices,
              Contains(HasSubstr("gpu_updates: unused, because this build has no kernels")));
  config.zero.offload_optimizer.device = Device::none;
  EXPECT_THAT(gpu_plan_of(config, machine).choices,
              Contains(StartsWith("updates of states on the GPU: on the cores")));
}

TEST(StatesOnGpu, AreUpdatedByTheCoresWhereTheWeightsAreElsewhere) {
  const auto notes = [](Device weights) {
    config::TrainConfig config = asking(1, weights);
    config.zero.offload_optimizer.device = Device::none;
    const Plan plan = gpu_plan_of(config);
    EXPECT_EQ(units_on_gpu(plan) > 0, weights == Device::none);
    return plan.choices;
  };
  const std::string on_cores = "updates of states on the GPU: on the cores";
  EXPECT_THAT(notes(Device::none), Not(Contains(StartsWith(on_cores))));
  EXPECT_THAT(notes(Device::cpu),
              Contains(AllOf(StartsWith(on_cores), HasSubstr("weights are not on the GPU"))));
  EXPECT_THAT(notes(Device::nvme), Contains(StartsWith(on_cores)));
}

TEST(StatesOnGpu, AreUpdatedByTheCoresWhereTheGradientIsElsewhere) {
  config::TrainConfig config = train_config(Device::none, Device::none, 128, 64);
  config.gradient_clipping = 1;
  const Plan plan =
      make_plan(config, model_config(4, 256), Placement::configured, machine_with_gpu(8 * kGiB));
  const std::ptrdiff_t elsewhere =
      std::count_if(plan.units.begin(), plan.units.end(), [](const UnitPlacement& unit) {
        return unit.weights == Tier::device && unit.states == Tier::device &&
               unit.gradients != Tier::device;
      });
  ASSERT_EQ(elsewhere, 1);
  EXPECT_THAT(plan.choices, Contains(AllOf(StartsWith("updates of states on the GPU: on the cores"),
                                           HasSubstr("gradients of 1 of 6 units have no room"))));
}

TEST(StatesOnGpu, SayWhyThereAreNone) {
  EXPECT_THAT(plan_of(asking(0)).choices, Contains("ratio: unused, because there is no GPU"));
  EXPECT_THAT(
      gpu_plan_of(asking(0.999)).choices,
      Contains("ratio: unused, because the share of the GPU is smaller than the first unit"));
}

TEST(StatesOnGpu, AreRefusedIfStrictWhereTheyDoNotFit) {
  config::TrainConfig config = asking(0);
  config.sluice.strict = true;
  EXPECT_EQ(units_on_gpu(gpu_plan_of(config)), 10U);
  config.sluice.device_bytes.value = 160 * kMiB;
  EXPECT_THAT(sluice::test::message_of<DoesNotFit>([&] { gpu_plan_of(config); }),
              HasSubstr("\"strict\": true does not allow: ratio: "));
}

TEST(StatesOnGpu, TakeNoTimeOfTheCoresAndNothingOfTheLink) {
  MachineRates rates;
  rates.block.first =
      rates.block.next = {.forward = 1e-3, .forward_saving = 1e-3, .backward = 2e-3};
  rates.update_elements_per_second = 1e6;
  rates.copy_bytes_per_second = 1e9;
  const Plan all = gpu_plan_of(asking(1, Device::none));
  const Plan none = gpu_plan_of(asking(0, Device::none));
  EXPECT_GT(predict(all, rates).update_seconds, 1);
  EXPECT_LT(predict(none, rates).update_seconds, 1e-3);
  EXPECT_GT(all.traffic.h2d_bytes, 0U);
  EXPECT_EQ(none.traffic.h2d_bytes, 0U);
  EXPECT_EQ(none.traffic.d2h_bytes, 0U);
}

}  // namespace
}  // namespace sluice::plan
