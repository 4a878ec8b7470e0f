// Updates that begin before the norm of all gradients is known: steps have the bits of steps whose
// updates wait, whether clipping is active never, at times or always, and a skipped step changes
// nothing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "device_run.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/saved_state.hpp"
#include "sluice/base/error.hpp"
#include "step/step_runner.hpp"
#include "update/tile_placement.hpp"

namespace sluice::train {
namespace {

using ::testing::HasSubstr;
using Case = test::RunCase;
using test::Home;

constexpr double kNever = 1e9;    // norms are smaller
constexpr double kAlways = 1e-6;  // norms are larger
constexpr int kSteps = 6;

struct Result : test::StepResults {
  SpeculativeCounters speculated;
};

class Speculation : public test::DeviceRun {
 protected:
  enum class On { host, gpu };

  static BackwardResult take_step(const models::Dataset& data, RunResources& resources,
                                  StepRunner& runner, Progress& progress) {
    const UpdateSettings update = next_update(resources, progress, false);
    return runner.forward_backward(data, progress.step + 1, progress.loss_scaler.scale(), update,
                                   {});
  }
  Result run(const Case& each, On on, int steps = kSteps) const {
    const plan::Plan plan = plan_of(each, on == On::gpu);
    RunResources resources(plan, {SwapMode::create}, nullptr, device_of(plan));
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    progress.loss_scaler = LossScaler(plan.config.fp16);
    Result result;
    while (progress.step < steps) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward = take_step(data(), resources, runner, progress);
      result.losses.push_back(backward.loss);
      result.norms.push_back(backward.gradient_norm);
      result.updated.push_back(runner.end_step(backward, update, progress).updated);
    }
    runner.finish_updates();
    EXPECT_LE(resources.host_pool->usage().peak_live_bytes, plan.planned.tiers.host);
    result.speculated = resources.updater->counters().speculated;
    result.weights = test::weights_of(resources);
    return result;
  }
  static RunDevice device_of(const plan::Plan& plan) {
    return plan.device.gpu ? test::make_stand_in_gpu(plan.planned.tiers.device)
                           : make_run_device(plan, nullptr);
  }
  Result run_both(Case each, On on) const {
    const Result waiting = run(each, on);
    EXPECT_EQ(waiting.speculated.kept + waiting.speculated.dropped, 0);
    each.speculative = true;
    Result speculative = run(each, on);
    test::expect_same(speculative, waiting);
    return speculative;
  }
};

constexpr std::uint64_t kUnits = 3;  // two blocks and a head; the embedding's gradient comes last

std::vector<Case> formats() {
  using config::MasterFormat;
  using config::MomentFormat;
  return {{.name = "weights_in_host_memory"},
          {.name = "weights_on_the_device", .weights = Home::none},
          {.name = "fp32_master", .master = MasterFormat::fp32},
          {.name = "fp32_master_weights_on_the_device",
           .weights = Home::none,
           .master = MasterFormat::fp32},
          {.name = "bf16_moments", .weights = Home::none, .moments = MomentFormat::bf16},
          {.name = "weights_on_nvme", .weights = Home::nvme}};
}

TEST_P(Speculation, KeepsEveryUpdateWhereNothingIsClipped) {
  Case each = GetParam();
  each.clipping = kNever;
  for (const On on : {On::host, On::gpu}) {
    const Result result = run_both(each, on);
    EXPECT_EQ(result.speculated.kept, kSteps * kUnits);
    EXPECT_EQ(result.speculated.dropped, 0);
  }
}

// One step has a norm that clips, but only with the gradient that arrives last.
TEST_P(Speculation, UpdatesAgainWhereAStepIsClipped) {
  Case each = GetParam();
  for (const On on : {On::host, On::gpu}) {
    each.clipping = kNever;
    const std::vector<double> norms = run(each, on, 1).norms;
    each.clipping = 0.9999 * norms.front();
    const Result result = run_both(each, on);
    ASSERT_GT(result.norms.front(), each.clipping);
    EXPECT_GT(result.speculated.dropped, 0);
    EXPECT_GT(result.speculated.kept, 0);
  }
}

// The head's gradient alone has a norm that clips, so not even the first step tries.
TEST_P(Speculation, TriesNothingWhereEveryStepIsClipped) {
  Case each = GetParam();
  each.clipping = kAlways;
  for (const On on : {On::host, On::gpu}) {
    const Result result = run_both(each, on);
    EXPECT_EQ(result.speculated.kept + result.speculated.dropped, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Speculation, testing::ValuesIn(formats()),
                         [](const auto& each) { return each.param.name; });

TEST_F(Speculation, AddsUpGradientsOfSeveralPasses) {
  const Result result =
      run_both({.weights = Home::none, .clipping = kNever, .per_pass = 1}, On::gpu);
  EXPECT_EQ(result.speculated.kept, kSteps * kUnits);
}

// The scale is divided out of the gradients, and no step is clipped.
TEST_F(Speculation, StepsThatOverflowAreSkippedAndChangeNothing) {
  for (const On on : {On::host, On::gpu}) {
    const Result result = run_both({.clipping = 0, .fp16 = true}, on);
    const auto skipped = std::count(result.updated.begin(), result.updated.end(), false);
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, kSteps);
    EXPECT_EQ(result.speculated.kept, (kSteps - static_cast<std::uint64_t>(skipped)) * kUnits);
  }
}

TEST_F(Speculation, UnitsWithoutRoomWaitForTheNorm) {
  Case each{.clipping = kNever};
  const Result waiting = run(each, On::host);
  each.speculative = true;
  plan::Plan plan = plan_of(each, false);
  const std::uint64_t all = plan.planned.tiers.host;
  each.speculative = false;
  const std::uint64_t second = all - plan_of(each, false).planned.tiers.host;
  each.speculative = true;
  each.host_bytes = all - second / 2;
  const Result result = run(each, On::host);
  test::expect_same(result, waiting);
  EXPECT_GT(result.speculated.kept, 0);
  EXPECT_LT(result.speculated.kept, kSteps * kUnits);
}

// As where a kill comes between the gradients and the end of a step: the checkpoint is that of the
// step before, and a run that continues from it has the losses of one that was not disturbed.
TEST_F(Speculation, ARunContinuesFromTheCheckpointBeforeAStepThatDidNotEnd) {
  const Case each{.clipping = kNever, .speculative = true};
  config::TrainConfig config = config_of(each);
  config.sluice.checkpoints.directory = file("checkpoints");
  std::filesystem::create_directory(config.sluice.checkpoints.directory);
  config.sluice.checkpoints.every = 2;
  const plan::Plan plan = plan::make_plan(config, model_of(each), plan::Placement::configured,
                                          plan::probe_machine(config));
  const Result undisturbed = run(each, On::host);
  {
    RunResources resources = test::make_resources(plan, {SwapMode::create});
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    CheckpointWriter checkpoints(resources);
    Progress progress;
    while (progress.step < 2) {
      const UpdateSettings update = next_update(resources, progress, false);
      const BackwardResult backward = take_step(data(), resources, runner, progress);
      runner.end_step(backward, update, progress);
      runner.finish_updates();
      commit_step(resources, checkpoints, progress, {.seed = kSeed, .settings = {}}, false);
    }
    take_step(data(), resources, runner, progress);
  }
  offload::HeldDirectories held;
  const RunSource source = find_source(plan.config, plan::Placement::configured, Resume::yes, held);
  RunResources resources = test::make_resources(plan, {SwapMode::create, &held});
  restore_states(resources, source);
  StepRunner runner(resources, kSeed);
  Progress progress;
  resume_progress(progress, source, *resources.communicator);
  EXPECT_EQ(progress.step, 2);
  std::vector<double> losses(undisturbed.losses.begin(), undisturbed.losses.begin() + 2);
  while (progress.step < kSteps) {
    const UpdateSettings update = next_update(resources, progress, false);
    const BackwardResult backward = take_step(data(), resources, runner, progress);
    losses.push_back(backward.loss);
    runner.end_step(backward, update, progress);
  }
  runner.finish_updates();
  EXPECT_EQ(losses, undisturbed.losses);
  const std::vector<torch::Tensor> weights = test::weights_of(resources);
  for (std::size_t u = 0; u < weights.size(); ++u)
    EXPECT_TRUE(torch::equal(weights[u], undisturbed.weights[u])) << u;
}

TEST_F(Speculation, AnUpdateThatIsNotFiniteStopsTheRunAndNamesTheParameter) {
  const auto error_of_run = [&](bool speculative) -> std::string {
    const Case each{.clipping = kNever, .speculative = speculative};
    const plan::Plan plan = plan_of(each, false);
    RunResources resources = test::make_resources(plan, {SwapMode::create});
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    UpdateSettings update = next_update(resources, progress, false);
    // Elements without a gradient become 0 / 0.
    for (cpu_adam::OptimizerConfig& group : update.groups)
      std::get<cpu_adam::AdamConfig>(group).epsilon = 0;
    const BackwardResult backward =
        runner.forward_backward(data(), 1, progress.loss_scaler.scale(), update, {});
    runner.end_step(backward, update, progress);
    try {
      runner.finish_updates();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string expected = error_of_run(false);
  EXPECT_THAT(expected, HasSubstr("gave a non-finite value from finite gradients"));
  EXPECT_EQ(error_of_run(true), expected);
}

}  // namespace
}  // namespace sluice::train
