// Steps of a model on a device that the host does not address and whose memory is one block of
// exactly the planned size, as on a GPU: the bits of a run on the host, or of any other placement.

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "device_run.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/saved_state.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

using config::Activations;
using Case = test::RunCase;
using test::Home;

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  double evaluation = 0;
};

class StandInGpuRun : public test::DeviceRun {
 protected:
  static RunDevice device_of(const plan::Plan& plan) {
    return plan.device.gpu ? test::make_stand_in_gpu(plan.planned.tiers.device)
                           : make_run_device(plan, nullptr);
  }
  BackwardResult take_step(RunResources& resources, StepRunner& runner, Progress& progress) const {
    const UpdateSettings update = next_update(resources, progress, false);
    BackwardResult backward = runner.forward_backward(data(), progress.step + 1,
                                                      progress.loss_scaler.scale(), update, [] {});
    EXPECT_EQ(backward.non_finite, "");
    EXPECT_TRUE(runner.end_step(backward, update, progress).updated);
    return backward;
  }

  static constexpr int kSteps = 3;
  Result run(const Case& each, bool on_gpu) {
    const plan::Plan plan = plan_of(each, on_gpu);
    RunResources resources(plan, {SwapMode::create}, nullptr, device_of(plan));
    initialise_states(resources, 5, std::nullopt);
    StepRunner runner(resources, 5);
    Progress progress;
    Result result;
    for (int step = 1; step <= kSteps; ++step) {
      const BackwardResult backward = take_step(resources, runner, progress);
      result.losses.push_back(backward.loss);
      result.norms.push_back(backward.gradient_norm);
    }
    runner.finish_updates();
    result.evaluation = *runner.evaluate(data(), 4, [](auto, auto) { return true; });
    EXPECT_LE(resources.device->memory().usage().peak_live_bytes, plan.planned.tiers.device);
    EXPECT_LE(resources.host_pool->usage().peak_live_bytes, plan.planned.tiers.host);
    return result;
  }
};

// Without clipping norms change no bit of the weights, and on both sides LibTorch's CPU kernels
// compute.
TEST_P(StandInGpuRun, HasTheBitsOfTheHost) {
  Case each = GetParam();
  each.clipping = 0;
  const Result on_host = run(each, false);
  const Result on_gpu = run(each, true);
  EXPECT_EQ(on_gpu.losses, on_host.losses);
  EXPECT_EQ(on_gpu.evaluation, on_host.evaluation);
  for (std::size_t i = 0; i < on_gpu.norms.size(); ++i)
    EXPECT_NEAR(on_gpu.norms[i] / on_host.norms[i], 1, 1e-5);
}

TEST_P(StandInGpuRun, HasTheBitsOfTheResidentOne) {
  Case resident = GetParam();
  resident.states = resident.weights = Home::none;
  resident.activations = Activations::keep;
  resident.placement = plan::Placement::resident;
  const Result expected = run(resident, true);
  const Result on_gpu = run(GetParam(), true);
  EXPECT_EQ(on_gpu.losses, expected.losses);
  EXPECT_EQ(on_gpu.norms, expected.norms);
  EXPECT_EQ(on_gpu.evaluation, expected.evaluation);
  EXPECT_LT(expected.losses.back(), expected.losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Placements, StandInGpuRun,
    testing::Values(
        Case{.name = "host"}, Case{.name = "host_dropout", .dropout = 0.1},
        Case{.name = "weights_on_device", .weights = Home::none},
        Case{.name = "recompute", .activations = Activations::recompute},
        Case{.name = "inputs_in_host", .activations = Activations::offload},
        Case{.name = "nvme", .states = Home::nvme, .weights = Home::nvme},
        Case{.name = "passes", .weights = Home::none, .per_pass = 1},
        Case{.name = "passes_of_gathered_weights", .dropout = 0.1, .per_pass = 1},
        Case{.name = "larger_last_pass",
             .weights = Home::none,
             .dropout = 0.1,
             .per_pass = 1,
             .last_pass = 2},
        Case{.name = "larger_last_pass_nvme",
             .states = Home::nvme,
             .weights = Home::nvme,
             .activations = Activations::offload,
             .per_pass = 1,
             .last_pass = 2},
        Case{.name = "passes_nvme",
             .states = Home::nvme,
             .weights = Home::nvme,
             .activations = Activations::offload,
             .per_pass = 1},
        Case{.name = "fp32_sums", .fp32_sums = true},
        Case{.name = "fp32_sums_nvme_passes",
             .states = Home::nvme,
             .weights = Home::nvme,
             .per_pass = 1,
             .fp32_sums = true},
        Case{.name = "gpu_updates", .weights = Home::none, .gpu_updates = true},
        Case{.name = "gpu_updates_bf16_moments",
             .weights = Home::none,
             .moments = config::MomentFormat::bf16,
             .gpu_updates = true},
        Case{.name = "gpu_updates_fp32_master",
             .weights = Home::none,
             .master = config::MasterFormat::fp32,
             .gpu_updates = true},
        Case{.name = "gpu_updates_fp32_sums",
             .weights = Home::none,
             .fp32_sums = true,
             .gpu_updates = true},
        Case{.name = "half_of_states_on_gpu", .ratio = 0.4},
        Case{.name = "halves_in_weights", .weights = Home::none, .halves_in_weights = true},
        Case{.name = "halves_in_weights_fp32_sums",
             .weights = Home::none,
             .dropout = 0.1,
             .per_pass = 1,
             .fp32_sums = true,
             .halves_in_weights = true},
        Case{.name = "halves_in_weights_gpu_updates",
             .weights = Home::none,
             .moments = config::MomentFormat::bf16,
             .gpu_updates = true,
             .halves_in_weights = true},
        Case{.name = "states_on_gpu_bf16_moments",
             .moments = config::MomentFormat::bf16,
             .ratio = 0},
        Case{.name = "states_on_gpu_fp32_master", .master = config::MasterFormat::fp32, .ratio = 0},
        Case{.name = "half_of_states_on_gpu_fp32_sums",
             .weights = Home::none,
             .fp32_sums = true,
             .gpu_updates = true,
             .ratio = 0.4},
        Case{.name = "weights_in_host_and_states_on_gpu", .states = Home::none},
        Case{.name = "weights_in_host_and_states_on_gpu_passes",
             .states = Home::none,
             .per_pass = 1,
             .fp32_sums = true,
             .gpu_updates = true},
        Case{.name = "weights_in_host_and_fp32_masters_on_gpu",
             .states = Home::none,
             .master = config::MasterFormat::fp32},
        Case{.name = "weights_on_nvme_and_states_on_gpu",
             .states = Home::none,
             .weights = Home::nvme},
        Case{.name = "resident", .states = Home::none, .weights = Home::none}),
    [](const auto& each) { return each.param.name; });

// The order of sums differs only where the head's weights are the embedding's.
TEST_F(StandInGpuRun, PassesChangeNoBitOfUntiedModels) {
  for (const bool on_gpu : {false, true}) {
    Case each{.clipping = 0, .dropout = 0.1, .tied = false};
    const Result at_once = run(each, on_gpu);
    each.per_pass = 1;
    for (const std::int64_t last : {1, 2, 3}) {
      each.last_pass = last;
      const Result passes = run(each, on_gpu);
      EXPECT_EQ(passes.losses, at_once.losses) << last;
      EXPECT_EQ(passes.norms, at_once.norms) << last;
      EXPECT_EQ(passes.evaluation, at_once.evaluation) << last;
    }
  }
}

TEST_F(StandInGpuRun, PassesOfTiedModelsAgree) {
  Case each;
  const Result at_once = run(each, true);
  each.per_pass = 1;
  const Result passes = run(each, true);
  EXPECT_EQ(passes.losses[0], at_once.losses[0]);
  for (std::size_t i = 1; i < passes.losses.size(); ++i)
    EXPECT_NEAR(passes.losses[i], at_once.losses[i], 1e-2);  // bf16 has 8 bits
  for (std::size_t i = 0; i < passes.norms.size(); ++i)
    EXPECT_NEAR(passes.norms[i] / at_once.norms[i], 1, 1e-2);
}

// By how little host memory a case runs: the first plan with states of some units on the device,
// and the last one that fits.
struct FullHosts {
  std::optional<Case> some;
  std::optional<Case> most;
};

class FullHostRun : public StandInGpuRun {
 protected:
  static std::size_t states_on_device(const plan::Plan& plan) {
    std::size_t count = 0;
    for (const plan::UnitPlacement& unit : plan.units)
      count += unit.states == offload::Tier::device ? 1 : 0;
    return count;
  }
  FullHosts shrink(Case each) const {
    FullHosts found;
    const plan::MachineFacts machine = machine_of(each, true);
    for (each.host_bytes = plan_on(each, machine).planned.tiers.host; each.host_bytes > 0;
         each.host_bytes -= each.host_bytes / 16 + 1) {
      try {
        if (states_on_device(plan_on(each, machine)) == 0) continue;
      } catch (const DoesNotFit&) {
        if (found.some) break;
        continue;  // tiles may be larger than the states of one unit
      }
      if (!found.some) found.some = each;
      found.most = each;
    }
    return found;
  }
};

// Host memory is too small for the states of all units: the GPU's memory holds the rest.
TEST_P(FullHostRun, HasTheBitsOfTheResidentOne) {
  Case resident = GetParam();
  resident.states = resident.weights = Home::none;
  resident.activations = Activations::keep;
  resident.placement = plan::Placement::resident;
  const Result expected = run(resident, true);
  const FullHosts full = shrink(GetParam());
  ASSERT_TRUE(full.some && full.most);
  EXPECT_LT(full.most->host_bytes, full.some->host_bytes);
  EXPECT_LT(states_on_device(plan_of(*full.some, true)),
            states_on_device(plan_of(*full.most, true)));
  for (const Case& each : {*full.some, *full.most}) {
    const Result got = run(each, true);
    EXPECT_EQ(got.losses, expected.losses) << each.host_bytes;
    EXPECT_EQ(got.norms, expected.norms) << each.host_bytes;
    EXPECT_EQ(got.evaluation, expected.evaluation) << each.host_bytes;
  }
  EXPECT_LT(expected.losses.back(), expected.losses.front());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, FullHostRun,
    testing::Values(Case{.name = "split", .layers = 4},
                    Case{.name = "fp32", .layers = 4, .master = config::MasterFormat::fp32},
                    Case{.name = "without_clipping", .clipping = 0, .layers = 4},
                    Case{.name = "recompute", .activations = Activations::recompute, .layers = 4}),
    [](const auto& each) { return each.param.name; });

// As when another program had taken what the plan did not know of.
TEST_F(StandInGpuRun, OutOfMemoryInAStepLosesNothingThatWasCommitted) {
  const Case each{.states = Home::nvme, .weights = Home::nvme, .clipping = 0};
  const Result expected = run(each, true);
  const plan::Plan plan = plan_of(each, true);
  {
    RunResources resources(plan, {SwapMode::create}, nullptr, device_of(plan));
    initialise_states(resources, 5, std::nullopt);
    StepRunner runner(resources, 5);
    CheckpointWriter checkpoints(resources);
    Progress progress;
    for (int step = 1; step < kSteps; ++step) {
      take_step(resources, runner, progress);
      runner.finish_updates();
      commit_step(resources, checkpoints, progress, {.seed = 5, .settings = {}}, false);
      EXPECT_EQ(progress.committed_step, step);
    }
    offload::MemoryPool& memory = resources.device->memory();
    // A step's peak depends on how much overlaps; an eighth of its memory never suffices.
    const offload::Buffer others = memory.allocate(
        (plan.planned.tiers.device - memory.usage().live_bytes) / 8 * 7, "what others have taken");
    try {
      take_step(resources, runner, progress);
      FAIL() << "seven eighths of the memory were gone";
    } catch (const OutOfMemory& e) {
      EXPECT_EQ(e.tier(), "device");
      EXPECT_GT(e.requested_bytes(), e.available_bytes());
    }
  }
  offload::HeldDirectories held;
  const RunSource source = find_source(plan.config, plan::Placement::configured, Resume::yes, held);
  ASSERT_TRUE(source.state.has_value());
  EXPECT_EQ(source.state->step, kSteps - 1);
  RunResources resources(plan, {SwapMode::open, &held}, nullptr, device_of(plan));
  restore_states(resources, source);
  StepRunner runner(resources, 5);
  Progress progress;
  resume_progress(progress, source, *resources.communicator);
  EXPECT_EQ(take_step(resources, runner, progress).loss, expected.losses.back());
  runner.finish_updates();
}

// On a GPU, where the device has no room for the activations of all micro-batches.
TEST_F(StandInGpuRun, PassesAreAsLargeAsActivationsFit) {
  const Case each{.weights = Home::none};
  config::TrainConfig config = config_of(each);
  config.gradient_accumulation_steps = 8;
  config.train_batch_size = 16;
  plan::MachineFacts machine = plan::probe_machine(config);
  machine.device.host_addressable = false;
  machine.device.gpu = plan::GpuFacts{0, "stand-in", 1U << 30U, 1U << 30U};
  const auto plan_with = [&](std::uint64_t device_bytes) {
    config.sluice.device_bytes = {config::ByteBudget::Kind::bytes, device_bytes};
    return plan::make_plan(config, model_of(each), plan::Placement::configured, machine);
  };
  const plan::Plan roomy = plan_with(256U << 20U);
  EXPECT_EQ(roomy.passes(), 1);
  plan::Plan tight = roomy;
  std::size_t most_passes = 1;
  for (std::uint64_t bytes = roomy.planned.tiers.device; bytes > roomy.least.device_bytes;
       bytes -= 64U << 10U) {
    tight = plan_with(bytes);
    EXPECT_LE(tight.planned.tiers.device, bytes);
    if (tight.passes() == 1) continue;
    most_passes = std::max(most_passes, tight.passes());
    for (std::size_t u = 0; u + 1 < tight.units.size(); ++u) {
      EXPECT_TRUE(tight.units[u].activations_saved) << u;
      EXPECT_EQ(tight.units[u].gradients, offload::Tier::device);
    }
  }
  EXPECT_GE(most_passes, 4);
  EXPECT_EQ(tight.passes(), 1) << "at last they are computed again";
}

TEST_F(StandInGpuRun, APlanIsMadeFromWhatTheUnitsWereSeenToHold) {
  const Case each{.activations = Activations::keep, .dropout = 0.1};
  const plan::Plan plan = plan_of(each, true);
  ASSERT_TRUE(plan.device.workspaces.has_value());
  EXPECT_TRUE(plan.device.workspaces->measured);
  const models::UnitWorkspace formula =
      models::unit_workspace(plan.model, 1, 2, plan.compute_dtype, plan.schedule.threads.compute);
  const models::UnitWorkspace& seen = plan.device.workspaces->block;
  // The formula is for these very kernels, and says no less than they take, but for scratch.
  constexpr double kScratchBytes = 1U << 20U;
  EXPECT_NEAR(static_cast<double>(seen.backward_bytes), static_cast<double>(formula.backward_bytes),
              kScratchBytes);
  EXPECT_NEAR(static_cast<double>(seen.kept_bytes), static_cast<double>(formula.kept_bytes), 4096);
}

}  // namespace
}  // namespace sluice::train
