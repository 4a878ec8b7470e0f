// Plans for a GPU: the device tier is the GPU's memory, not the machine's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plans.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan_text.hpp"

namespace sluice::plan {
namespace {

using testing::HasSubstr;
using testing::Not;

MachineFacts with_gpu(std::uint64_t free_bytes) {
  return machine_with_gpu(free_bytes, 2 * free_bytes);
}

config::TrainConfig some_config() {
  config::TrainConfig config = train_config(Device::cpu, Device::none, 0, 0);
  config.sluice.device_bytes = config.sluice.host_bytes = {};
  return config;
}

TEST(GpuPlan, DeviceBytesAreTheGpus) {
  const MachineFacts machine = with_gpu(8 * kGiB);
  const Plan plan = make_plan(some_config(), model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(*plan.budget.device_bytes, 8 * kGiB / 100 * 90);
  EXPECT_EQ(*plan.budget.host_bytes, machine.available_memory_bytes / 100 * 80);
  EXPECT_EQ(compute_name(plan), "cuda:0 (NVIDIA Test)");
  EXPECT_THAT(plan_table(plan), HasSubstr("estimated: a run measures it first"));
  EXPECT_THAT(plan_table(plan), HasSubstr("gaps"));
}

TEST(GpuPlan, KeepsMappedBlocksAsFarAsTheBudgetHasRoom) {
  MachineFacts machine = with_gpu(8 * kGiB);
  const auto kept_bytes = [](const Plan& plan) { return row_of(plan, "kept blocks").bytes.device; };
  const auto plan_with = [&](std::uint64_t page_bytes, config::ByteBudget budget) {
    machine.device.gpu->page_bytes = page_bytes;
    config::TrainConfig config = some_config();
    config.sluice.device_bytes = budget;
    return make_plan(config, model_config(4, 256), Placement::configured, machine);
  };
  EXPECT_EQ(kept_bytes(plan_with(0, {})), 0U) << "an arena maps nothing";
  const Plan roomy = plan_with(2 * kMiB, {});
  const std::uint64_t kept = kept_bytes(roomy);
  EXPECT_GT(kept, 0U);
  const std::uint64_t tight_bytes = roomy.planned.tiers.device - kept + kept / 4;
  const Plan tight = plan_with(2 * kMiB, {config::ByteBudget::Kind::bytes, tight_bytes});
  EXPECT_EQ(kept_bytes(tight), kept / 4);
  EXPECT_EQ(tight.planned.tiers.device, tight_bytes);
  // A tenth of what is free stays for libraries, whatever the budget, and the plan is not refused.
  std::uint64_t& free_bytes = machine.device.gpu->free_bytes;
  free_bytes = roomy.planned.tiers.device - kept + kept / 4;
  const Plan beyond = plan_with(2 * kMiB, {config::ByteBudget::Kind::bytes, 8 * kGiB});
  EXPECT_EQ(beyond.planned.tiers.device, free_bytes / 10 * 9);
  free_bytes = roomy.planned.tiers.device - kept;
  EXPECT_EQ(kept_bytes(plan_with(2 * kMiB, {config::ByteBudget::Kind::bytes, 8 * kGiB})), 0U);
}

TEST(GpuPlan, SparesCoresForLaunches) {
  MachineFacts machine = with_gpu(8 * kGiB);
  const auto optimizer_threads = [&](const config::TrainConfig& config) {
    return make_plan(config, model_config(4, 256), Placement::configured, machine)
        .schedule.threads.optimizer;
  };
  machine.cores = 16;
  EXPECT_EQ(optimizer_threads(some_config()), 14);
  config::TrainConfig config = some_config();
  config.sluice.threads.optimizer = 16;
  EXPECT_EQ(optimizer_threads(config), 16);
  machine.cores = 4;
  EXPECT_EQ(optimizer_threads(some_config()), 4) << "too few to spare two";
  machine.cores = 16;
  machine.device.gpu.reset();
  EXPECT_EQ(optimizer_threads(some_config()), 16);
}

// At home in host memory, the head's part would come back to the device for the embedding's.
TEST(GpuPlan, SumsTheGradientsOfATiedEmbeddingOnTheDevice) {
  const MachineFacts machine = with_gpu(8 * kGiB);
  config::TrainConfig config = some_config();
  config.sluice.passes.each = config.gradient_accumulation_steps;
  const Plan roomy = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(roomy.units.front().gradients, Tier::device);
  EXPECT_EQ(roomy.units[1].gradients, Tier::host);
  EXPECT_THAT(plan_table(roomy), Not(HasSubstr("gradients waiting for the norm:")));
  config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, roomy.least.device_bytes};
  const Plan tight = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(tight.units.front().gradients, Tier::host) << "it is the first to leave";
}

TEST(GpuPlan, TakesNoHostMemoryForTheDeviceTier) {
  MachineFacts machine = with_gpu(8 * kGiB);
  config::TrainConfig config = some_config();
  config.sluice.passes.each = config.gradient_accumulation_steps;
  const Plan plan = make_plan(config, model_config(4, 256), Placement::configured, machine);
  machine.available_memory_bytes = plan.planned.tiers.host + plan.planned.runtime_bytes;
  config.sluice.host_bytes = {config::ByteBudget::Kind::bytes, plan.planned.tiers.host};
  EXPECT_EQ(refusal(config, model_config(4, 256), machine), "");
  machine.available_memory_bytes -= 1;
  EXPECT_THAT(refusal(config, model_config(4, 256), machine),
              HasSubstr("host tier and the program itself need"));
}

TEST(GpuPlan, ABudgetBeyondTheFreeMemoryIsHeldAgainstWhatIsPlanned) {
  config::TrainConfig config = some_config();
  config.sluice.passes.each = config.gradient_accumulation_steps;
  const Plan plan =
      make_plan(config, model_config(4, 256), Placement::configured, with_gpu(8 * kGiB));
  // Another program holds most of the GPU's memory.
  config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, 8 * kGiB};
  const std::string text =
      refusal(config, model_config(4, 256), with_gpu(plan.planned.tiers.device - 1));
  EXPECT_THAT(text, HasSubstr("cuda:0 (NVIDIA Test)"));
  EXPECT_THAT(text, HasSubstr("are free: lower"));
  EXPECT_THAT(text, HasSubstr("nvidia-smi"));
}

TEST(GpuPlan, AResidentModelThatTheGpuCannotHoldIsRefused) {
  EXPECT_THAT(
      refusal(some_config(), model_config(4, 256), with_gpu(20 * kMiB), Placement::resident),
      HasSubstr("are free: lower"));
}

TEST(GpuPlan, PinsHostMemoryUnlessToldOtherwise) {
  config::TrainConfig config = some_config();
  MachineFacts machine = with_gpu(8 * kGiB);
  const Plan pinned = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_TRUE(pinned.planned.pinned_staging);
  EXPECT_EQ(pinned.planned.pinned_bytes, pinned.planned.tiers.host);
  // The GPU's driver pins the memory, beside the limit.
  machine.memlock_bytes = 64 * kKiB;
  const Plan limited = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(limited.planned.pinned_bytes, pinned.planned.pinned_bytes);
  config.zero.offload_optimizer.pin_memory = false;
  const Plan pageable = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_FALSE(pageable.planned.pinned_staging);
  EXPECT_THAT(pageable.choices, testing::Contains(HasSubstr("pageable")));
}

TEST(GpuPlan, WhatIsMeasuredIsTakenInsteadOfTheEstimate) {
  MachineFacts machine = with_gpu(8 * kGiB);
  const Plan estimated =
      make_plan(some_config(), model_config(4, 256), Placement::configured, machine);
  machine.device.workspaces = *estimated.device.workspaces;
  machine.device.workspaces->measured = true;
  machine.device.workspaces->held_bytes += 100 * kMiB;
  machine.device.workspaces->micro_batch = some_config().micro_batch_size;
  machine.device.workspaces->n_positions = model_config(4, 256).n_positions;
  const Plan measured =
      make_plan(some_config(), model_config(4, 256), Placement::configured, machine);
  // Plus an eighth for gaps.
  EXPECT_NEAR(static_cast<double>(measured.planned.tiers.device - estimated.planned.tiers.device),
              100 * kMiB * 1.125, kMiB);
  // Another micro-batch size has other workspaces.
  machine.device.workspaces->micro_batch *= 2;
  const Plan other = make_plan(some_config(), model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(other.planned.tiers.device, estimated.planned.tiers.device);
}

// A tenth of the activations fit.
TEST(GpuPlan, PassesOfFewTokensAreForWeightsOnTheDevice) {
  config::TrainConfig config = some_config();
  config.gradient_accumulation_steps = 64;
  config.train_batch_size = 128;
  const MachineFacts machine = with_gpu(400 * kMiB);
  const Plan plan = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_GT(plan.passes(), 1U);
  EXPECT_THAT(plan.choices, testing::Contains(testing::StartsWith("micro_batches_per_pass: ")));
  EXPECT_THAT(plan.choices, testing::Not(testing::Contains(HasSubstr("used up"))));
  config.zero.offload_param.device = Device::cpu;
  const Plan offloaded = make_plan(config, model_config(4, 256), Placement::configured, machine);
  EXPECT_EQ(offloaded.passes(), 1U);
  config.micro_batch_size = 128;  // a micro-batch has 16,384 tokens
  config.gradient_accumulation_steps = 4;
  config.train_batch_size = 512;
  const Plan large =
      make_plan(config, model_config(4, 256), Placement::configured, with_gpu(2 * kGiB));
  EXPECT_GT(large.passes(), 1U);
}

// With few tokens a GPU's backward is faster than updates of states in memory, so gradients wait.
TEST(GpuPlan, FewTokensHaveAGradientSlotForEachUnit) {
  const auto slots = [](std::int64_t micro_batches) {
    config::TrainConfig config = some_config();
    config.gradient_clipping = 0;
    config.zero.offload_param.device = Device::cpu;  // otherwise they stay on the GPU
    config.gradient_accumulation_steps = micro_batches;
    config.train_batch_size = 2 * micro_batches;
    config.sluice.passes.each = micro_batches;
    return make_plan(config, model_config(8, 256), Placement::configured, with_gpu(64 * kGiB))
        .rings.gradient_slots;
  };
  EXPECT_EQ(slots(4), 8);    // 1,024 tokens
  EXPECT_EQ(slots(256), 3);  // 65,536
}

}  // namespace
}  // namespace sluice::plan
