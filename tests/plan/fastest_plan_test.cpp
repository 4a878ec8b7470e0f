// Plans on a machine with measured rates: never predicted slower than the default plan, and within
// the same budgets.

#include <gtest/gtest.h>

#include <algorithm>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/plan/unit_placement.hpp"

namespace sluice::plan {
namespace {

// One second of computing per block and step with recompute, three quarters without.
MachineRates rates_of(double drive_bytes_per_second) {
  MachineRates rates;
  rates.block.first = rates.block.next = {.forward = 0.25, .forward_saving = 0.25, .backward = 0.5};
  rates.copy_bytes_per_second = 4e9;
  rates.update_elements_per_second = 1e9;
  rates.read_bytes_per_second = rates.write_bytes_per_second = rates.swap_bytes_per_second =
      drive_bytes_per_second;
  return rates;
}

FindRates always(const MachineRates& rates) {
  return [rates](const Plan&) { return std::optional(rates); };
}

config::TrainConfig one_micro_batch(Device optimizer, Device param, std::uint64_t device_mib,
                                    std::uint64_t host_mib) {
  config::TrainConfig config = train_config(optimizer, param, device_mib, host_mib);
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = config.micro_batch_size;
  config.zero.offload_param.directories = config.zero.offload_optimizer.directories = {"/drive"};
  return config;
}

std::string line_of(const Plan& plan) {
  const auto line =
      std::find_if(plan.choices.begin(), plan.choices.end(),
                   [](const std::string& choice) { return choice.starts_with("faster: "); });
  return line == plan.choices.end() ? "" : *line;
}

std::ptrdiff_t kept_weights(const Plan& plan) {
  return std::count_if(plan.units.begin(), plan.units.end(),
                       [](const UnitPlacement& unit) { return unit.gathered_until_backward; });
}

TEST(FastestPlan, IsTheUsualOneWhereRatesAreNotKnown) {
  const auto config = one_micro_batch(Device::nvme, Device::nvme, 24, 64);
  const FindRates unknown = [](const Plan&) { return std::nullopt; };
  EXPECT_EQ(plan_table(plan_of(config, unknown)), plan_table(plan_of(config)));
  EXPECT_EQ(line_of(plan_of(config, unknown)), "");
}

TEST(FastestPlan, IsTheUsualOneWhereOnlyComputingTakesTime) {
  const auto config = one_micro_batch(Device::nvme, Device::nvme, 24, 64);
  const Plan plan = plan_of(config, always(rates_of(1e12)));
  EXPECT_EQ(plan_table(plan), plan_table(plan_of(config)));
  EXPECT_EQ(line_of(plan), "");
}

// With a fast drive, a recompute costs more than another gather. With a slow drive, it costs less.
TEST(FastestPlan, KeepsWeightsRatherThanActivationsWhereTheDriveIsSlow) {
  const auto config = one_micro_batch(Device::nvme, Device::nvme, 24, 1024);
  const Plan usual = plan_of(config);
  ASSERT_LT(kept_weights(usual), 8);
  const Plan slow = plan_of(config, always(rates_of(2e6)));
  EXPECT_GT(kept_weights(slow), kept_weights(usual)) << line_of(slow);
  EXPECT_LT(slow.traffic.nvme_read_bytes, usual.traffic.nvme_read_bytes);
  EXPECT_NE(line_of(slow).find("a step predicted, instead of"), std::string::npos);
}

TEST(FastestPlan, LeavesTheCacheThatIsAskedFor) {
  auto config = one_micro_batch(Device::nvme, Device::cpu, 64, 64);
  config.sluice.cache_bytes = {ByteBudget::Kind::percent, 50};
  const Plan usual = plan_of(config);
  ASSERT_GT(usual.traffic.nvme_cached_bytes, 0U);
  for (const double rate : {1e6, 1e7, 1e8})
    EXPECT_EQ(plan_of(config, always(rates_of(rate))).traffic.nvme_cached_bytes,
              usual.traffic.nvme_cached_bytes);
}

TEST(FastestPlan, LeavesActivationsThatTheConfigurationForces) {
  for (const auto forced : {config::Activations::recompute, config::Activations::offload}) {
    auto config = one_micro_batch(Device::nvme, Device::nvme, 24, 1024);
    config.sluice.activations = forced;
    const Plan plan = plan_of(config, always(rates_of(2e6)));
    for (std::size_t u = 1; u < plan.units.size(); ++u) {
      EXPECT_FALSE(plan.units[u].activations_saved);
      EXPECT_EQ(plan.units[u].inputs.front() == Tier::device,
                forced == config::Activations::recompute);
    }
  }
}

// A GPU with room for the activations of two of 16 micro-batches.
Plan gpu_plan(config::TrainConfig config, double update_seconds) {
  config.gradient_accumulation_steps = 16;
  config.train_batch_size = 16 * config.micro_batch_size;
  MachineFacts machine = roomy_machine();
  machine.device.host_addressable = false;
  machine.device.gpu = GpuFacts{0, "a GPU", 8 * kGiB, 8 * kGiB};
  const config::ModelConfig model = model_config(8, 256);
  const auto plan_with = [&](const FindRates& find_rates) {
    return make_plan(config, model, Placement::configured, machine, find_rates);
  };
  while (plan_with({}).passes() < 8) {
    machine.device.gpu->free_bytes -= 8 * kMiB;
    config.sluice.device_bytes = {ByteBudget::Kind::bytes, machine.device.gpu->free_bytes};
  }
  EXPECT_EQ(plan_with({}).passes(), 8);
  MachineRates rates = rates_of(1e12);
  rates.copy_bytes_per_second = 1e15;
  rates.update_elements_per_second =
      static_cast<double>(plan_with({}).model_size.parameters) / update_seconds;
  return plan_with(always(rates));
}

// Computing a pass of two takes 12 s, 8 s of them in backward.
TEST(FastestPlan, HasALargerLastPassWhereUpdatesAreSlow) {
  auto config = train_config(Device::cpu, Device::none, 1024, 1024);
  config.gradient_clipping = 0;
  const Plan quick = gpu_plan(config, 4);
  EXPECT_EQ(quick.passes(), 8U);
  EXPECT_EQ(quick.schedule.passes.last, 2U);
  const Plan slow = gpu_plan(config, 30);
  EXPECT_EQ(slow.schedule.passes.each, 2U);
  EXPECT_GT(slow.schedule.passes.last, 2U);
  EXPECT_LT(slow.passes(), 8U);
  EXPECT_NE(line_of(slow).find("2 micro-batches a pass, "), std::string::npos) << line_of(slow);
  config.sluice.activations = config::Activations::keep;
  const StepSchedule keeping = gpu_plan(config, 30).schedule;
  EXPECT_EQ(keeping.passes.last, keeping.passes.each) << "all are saved";
}

// Plans of a configuration, and how many of them are faster than the usual one.
struct Compared {
  int planned = 0;
  int faster = 0;
};
void compare(const config::TrainConfig& config, double rate, Compared& so_far) {
  const auto usual = try_plan(config, model_config(8, 256), Placement::configured, roomy_machine());
  if (!usual) return;
  ++so_far.planned;
  const MachineRates rates = rates_of(rate);
  const Plan plan = plan_of(config, always(rates));
  if (line_of(plan).empty()) {
    EXPECT_EQ(plan_table(plan), plan_table(*usual));
  } else {
    const double usual_seconds = predict(*usual, rates).step_seconds;
    EXPECT_LT(predict(plan, rates).step_seconds, 0.99 * usual_seconds) << line_of(plan);
    ++so_far.faster;
  }
  EXPECT_LE(plan.planned.tiers.device, *plan.budget.device_bytes);
  EXPECT_LE(plan.planned.tiers.host, *plan.budget.host_bytes);
}

TEST(FastestPlan, IsNeverSlowerThanTheUsualOneAndWithinTheSameBudgets) {
  Compared all;
  const std::pair<Device, Device> tiers[] = {
      {Device::nvme, Device::nvme}, {Device::nvme, Device::cpu}, {Device::cpu, Device::cpu}};
  for (const auto& [optimizer, param] : tiers)
    for (const std::uint64_t device_mib : {12, 16, 24, 40})
      for (const std::uint64_t host_mib : {24, 40, 60, 90})
        for (const double clipping : {0.0, 1.0})
          for (const double rate : {1e6, 1e7, 1e8}) {
            auto config = one_micro_batch(optimizer, param, device_mib, host_mib);
            config.gradient_clipping = clipping;
            config.sluice.cache_bytes = {ByteBudget::Kind::automatic, 0};
            compare(config, rate, all);
          }
  EXPECT_GT(all.planned, 100);
  EXPECT_GT(all.faster, 10);
}

}  // namespace
}  // namespace sluice::plan
