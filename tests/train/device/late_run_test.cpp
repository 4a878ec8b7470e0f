// Whole steps on a device whose compute work and copies end late, over many schedules: no use of
// memory is unordered, and losses and weights have the bits of a device that computes at once.

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/tensor_bytes.hpp"
#include "device_run.hpp"
#include "late_gpu.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/saved_state.hpp"
#include "schedules.hpp"
#include "trace_events.hpp"

namespace sluice::train {
namespace {

using config::Activations;
using ::testing::IsEmpty;
using Case = test::RunCase;
using test::Home;

constexpr int kSteps = 3;
// Stands for a limit that only the first step's norm is above, by the gradient that comes last.
constexpr double kBelowTheFirstNorm = -1;

struct Result {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> updated;
  std::vector<torch::Tensor> weights;
  double evaluation = 0;
  std::uint64_t device_elements = 0;  // updated by the device
};

using Copies = std::vector<std::vector<std::byte>>;  // of parts of states

class LateRun : public test::DeviceRun {
 protected:
  LateRun() { at::set_num_threads(1); }

  // One step, and the commit of the step before.
  void take_step(RunResources& resources, StepRunner& runner, Progress& progress,
                 Result& result) const {
    const UpdateSettings update = next_update(resources, progress, false);
    const BackwardResult backward =
        runner.forward_backward(data(), progress.step + 1, progress.loss_scaler.scale(), update,
                                [&] { commit(resources, progress); });
    result.updated.push_back(runner.end_step(backward, update, progress).updated);
    result.losses.push_back(backward.loss);
    result.norms.push_back(backward.gradient_norm);
  }
  static void commit(RunResources& resources, Progress& progress) {
    if (progress.step == progress.committed_step || !resources.commits_swap()) return;
    CheckpointWriter checkpoints(resources);
    commit_step(resources, checkpoints, progress, {.seed = kSeed, .settings = {}}, false);
  }
  void end_run(RunResources& resources, StepRunner& runner, Progress& progress,
               Result& result) const {
    runner.finish_updates();
    commit(resources, progress);
    result.evaluation = *runner.evaluate(data(), 4, [](auto, auto) { return true; });
    result.weights = test::weights_of(resources);
    result.device_elements = resources.updater->counters().device_elements;
  }

  // Takes the steps up to `last`, from the beginning or from the committed step.
  Result run(const plan::Plan& plan, RunDevice device, int last, bool resume) const {
    if (!resume) forget_run();
    offload::HeldDirectories held;
    RunSource source;
    if (resume) source = find_source(plan.config, plan::Placement::configured, Resume::yes, held);
    RunResources resources(plan, {resume ? SwapMode::open : SwapMode::create, &held}, nullptr,
                           std::move(device));
    Progress progress;
    progress.loss_scaler = LossScaler(plan.config.fp16);
    if (resume) {
      restore_states(resources, source);
      resume_progress(progress, source, *resources.communicator);
    } else {
      initialise_states(resources, kSeed, std::nullopt);
    }
    StepRunner runner(resources, kSeed);
    Result result;
    while (progress.step < last) take_step(resources, runner, progress, result);
    end_run(resources, runner, progress, result);
    return result;
  }
  Result run_late(const plan::Plan& plan, std::uint64_t seed, int last = kSteps,
                  bool resume = false) const {
    const test::LateGpu gpu({.memory_bytes = plan.planned.tiers.device, .seed = seed});
    Result result = run(plan, gpu.run_device(), last, resume);
    EXPECT_THAT(gpu.violations(), IsEmpty());
    return result;
  }
  Result run_at_once(const Case& asked) const {
    Case each = asked;
    each.speculative = each.gpu_updates = false;
    each.ratio = 1;
    // Norms of the host device have other bits, so clipping would change the weights.
    const plan::Plan plan = plan_of(each, each.clipping > 0);
    RunDevice device = each.clipping > 0 ? test::make_stand_in_gpu(plan.planned.tiers.device)
                                         : make_run_device(plan, nullptr);
    return run(plan, std::move(device), kSteps, false);
  }
  Copies copies_of_first_step(const plan::Plan& plan, RunDevice device, int steps) const;
  void expect_bits_of_one_that_computes_at_once(const Case& each) const;
  void expect_updates_beside_backward(const Case& each, const std::string& update) const;
};

using Events = std::vector<sluice::test::TraceEvent>;
// When the last span of that name ended. "backward" may have computed again.
double end_of(const Events& events, const std::string& row, const std::string& name) {
  double end = 0;
  for (const auto& event : events) {
    if (event.row == row && event.name.find(name) != std::string::npos)
      end = std::max(end, event.end_us);
  }
  EXPECT_GT(end, 0) << row << ": " << name;
  return end;
}
long count_of(const Events& events, const std::string& row, const std::string& name) {
  return std::count_if(events.begin(), events.end(),
                       [&](const auto& event) { return event.row == row && event.name == name; });
}

void expect_same(const Result& late, const Result& at_once) {
  EXPECT_EQ(late.losses, at_once.losses);
  EXPECT_EQ(late.updated, at_once.updated);
  EXPECT_EQ(late.evaluation, at_once.evaluation);
  test::expect_same_weights(late.weights, at_once.weights);
}

void LateRun::expect_bits_of_one_that_computes_at_once(const Case& asked) const {
  Case each = asked;
  if (asked.clipping == kBelowTheFirstNorm) {
    each.clipping = 1e6;
    each.clipping = 0.9999 * run_at_once(each).norms.front();
  }
  const plan::Plan plan = plan_of(each, true);
  const Result expected = run_at_once(each);
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const Result late = run_late(plan, seed);
    expect_same(late, expected);
    EXPECT_TRUE(late.device_elements == 0 || each.updates_on_device());
    EXPECT_TRUE(late.device_elements > 0 || each.ratio == 1);
    if (HasFailure()) return;
  }
}

TEST_P(LateRun, HasTheBitsOfADeviceThatComputesAtOnce) {
  expect_bits_of_one_that_computes_at_once(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Placements, LateRun,
    testing::Values(
        Case{.name = "host_clipped", .dropout = 0.1},
        Case{.name = "host", .activations = Activations::recompute, .clipping = 0, .tied = false},
        Case{.name = "weights_on_device", .weights = Home::none, .clipping = 0},
        Case{.name = "halves", .weights = Home::none, .clipping = 0, .halves_in_weights = true},
        Case{.name = "inputs_in_host", .activations = Activations::offload, .clipping = 0},
        Case{.name = "nvme", .states = Home::nvme, .weights = Home::nvme, .clipping = 0},
        Case{.name = "passes", .weights = Home::none, .clipping = 0, .dropout = 0.1, .per_pass = 1},
        Case{.name = "larger_last_pass",
             .weights = Home::none,
             .clipping = 0,
             .dropout = 0.1,
             .per_pass = 1,
             .last_pass = 2},
        Case{.name = "passes_nvme",
             .states = Home::nvme,
             .weights = Home::nvme,
             .activations = Activations::offload,
             .per_pass = 1},
        Case{.name = "resident", .states = Home::none, .weights = Home::none, .clipping = 0},
        Case{.name = "fp16", .clipping = 0, .fp16 = true},
        Case{.name = "speculative", .clipping = 1e6, .dropout = 0.1, .speculative = true},
        Case{.name = "speculative_clipped", .clipping = 1e-3, .speculative = true},
        Case{.name = "speculative_clipped_at_times",
             .clipping = kBelowTheFirstNorm,
             .speculative = true},
        Case{.name = "speculative_weights_on_device",
             .weights = Home::none,
             .clipping = kBelowTheFirstNorm,
             .speculative = true},
        Case{.name = "speculative_passes",
             .weights = Home::none,
             .clipping = 1e6,
             .per_pass = 1,
             .speculative = true},
        Case{.name = "speculative_weights_on_nvme",
             .weights = Home::nvme,
             .clipping = 1e6,
             .speculative = true},
        Case{.name = "speculative_fp16", .clipping = 0, .fp16 = true, .speculative = true},
        Case{.name = "gpu_updates", .weights = Home::none, .clipping = 0, .gpu_updates = true},
        Case{.name = "gpu_updates_clipped",
             .weights = Home::none,
             .dropout = 0.1,
             .gpu_updates = true},
        Case{.name = "gpu_updates_passes",
             .weights = Home::none,
             .clipping = 0,
             .per_pass = 1,
             .gpu_updates = true},
        Case{.name = "gpu_updates_speculative",
             .weights = Home::none,
             .clipping = kBelowTheFirstNorm,
             .speculative = true,
             .gpu_updates = true},
        Case{.name = "gpu_updates_fp16",
             .weights = Home::none,
             .clipping = 0,
             .fp16 = true,
             .gpu_updates = true},
        Case{.name = "states_on_gpu", .weights = Home::none, .clipping = 0, .ratio = 0},
        Case{.name = "half_of_states_on_gpu", .clipping = 0, .dropout = 0.1, .ratio = 0.4},
        Case{.name = "half_of_states_on_gpu_clipped", .ratio = 0.4},
        Case{.name = "half_of_states_on_gpu_passes",
             .weights = Home::none,
             .clipping = 0,
             .per_pass = 1,
             .ratio = 0.4},
        Case{.name = "half_of_states_on_gpu_gpu_updates",
             .weights = Home::none,
             .clipping = kBelowTheFirstNorm,
             .speculative = true,
             .gpu_updates = true,
             .ratio = 0.4},
        Case{.name = "states_on_gpu_fp16", .clipping = 0, .fp16 = true, .ratio = 0}),
    [](const auto& each) { return each.param.name; });

// With the least memory, gradients and inputs go to the drive as well.
TEST_F(LateRun, HasTheBitsWhereGradientsAndInputsAreSpilled) {
  Case each{.states = Home::nvme,
            .weights = Home::nvme,
            .activations = Activations::offload,
            .clipping = 1};
  const plan::Plan roomy = plan_of(each, true);
  each.host_bytes = roomy.least.host_bytes;
  each.device_bytes = roomy.least.device_bytes;
  const plan::Plan plan = plan_of(each, true);
  EXPECT_EQ(plan.units[1].gradients, offload::Tier::nvme);
  EXPECT_EQ(plan.units[1].inputs.front(), offload::Tier::nvme);
  expect_bits_of_one_that_computes_at_once(each);
}

TEST_F(LateRun, ContinuesFromACommittedStep) {
  const Case each{.states = Home::nvme, .weights = Home::none, .clipping = 0};
  const plan::Plan plan = plan_of(each, true);
  const Result expected = run_at_once(each);
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    run_late(plan, seed, 1);
    const Result rest = run_late(plan, seed + 1, kSteps, true);
    EXPECT_EQ(rest.losses, std::vector<double>(expected.losses.begin() + 1, expected.losses.end()));
    for (std::size_t u = 0; u < rest.weights.size(); ++u)
      EXPECT_TRUE(torch::equal(rest.weights[u], expected.weights[u])) << u;
    if (HasFailure()) return;
  }
}

// The device computes only when nothing else can happen. So an update that ran before the backward
// of the next unit had ended did not wait for that backward.
void LateRun::expect_updates_beside_backward(const Case& each, const std::string& update) const {
  plan::Plan plan = plan_of(each, true);
  plan.rings.update.tile_elements = 4096;  // some ten tiles of a unit
  const std::string path = file("trace.json");
  {
    Trace trace(path, Trace::Old::replace);
    const test::LateGpu gpu({.memory_bytes = plan.planned.tiers.device, .compute_last = true});
    RunResources resources(plan, {SwapMode::create}, &trace, gpu.run_device());
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    Progress progress;
    Result result;
    take_step(resources, runner, progress, result);
    runner.finish_updates();
    EXPECT_THAT(gpu.violations(), IsEmpty());
  }
  const auto events = sluice::test::read_trace(path);
  for (int layer = each.layers - 1; layer > 0; --layer) {
    const std::string name = "h." + std::to_string(layer);
    const double backward_ends = end_of(events, "gpu", "backward h." + std::to_string(layer - 1));
    EXPECT_GT(count_of(events, "update", update + " " + name), 5) << name;
    EXPECT_LT(end_of(events, "update", update + " " + name), backward_ends)
        << name << (each.per_pass ? ", with passes" : "");
  }
}

TEST_F(LateRun, UpdatesRunWhileTheUnitsBehindThemCompute) {
  for (const std::optional<std::int64_t> per_pass : {std::optional<std::int64_t>(), {1}}) {
    expect_updates_beside_backward(
        {.weights = Home::none, .clipping = 0, .per_pass = per_pass, .layers = 6}, "update");
  }
}

// Clipping needs the norm of all gradients, and these updates do not wait for it.
TEST_F(LateRun, SpeculativeUpdatesRunWhileTheUnitsBehindThemCompute) {
  for (const std::optional<std::int64_t> per_pass : {std::optional<std::int64_t>(), {1}}) {
    expect_updates_beside_backward({.weights = Home::none,
                                    .clipping = 1e6,
                                    .per_pass = per_pass,
                                    .layers = 6,
                                    .speculative = true},
                                   "speculative update");
  }
}

// The states of all units after the first of `steps` steps, copied while the next ones run.
Copies LateRun::copies_of_first_step(const plan::Plan& plan, RunDevice device, int steps) const {
  RunResources resources(plan, {SwapMode::create}, nullptr, std::move(device));
  initialise_states(resources, kSeed, std::nullopt);
  StepRunner runner(resources, kSeed);
  Progress progress;
  Copies copies;
  std::vector<Ticket> tickets;
  for (int step = 1; step <= steps; ++step) {
    const UpdateSettings update = next_update(resources, progress, false);
    runner.end_step(runner.forward_backward(data(), step, 1, update, [] {}), update, progress);
    for (std::size_t u = 0; step == 1 && u < plan.layouts.size(); ++u) {
      StateSpans parts;
      for (std::size_t i = 0; i < plan.state_format.part_count(); ++i) {
        copies.emplace_back(plan.layouts[u].flat_count * plan.state_format.part(i).element_bytes);
        parts[i] = copies.back();
      }
      tickets.push_back(resources.updater->begin_copy_to(u, parts));
    }
  }
  runner.finish_updates();
  finish_all(tickets);
  return copies;
}

// The CPU copies a unit between two updates of the GPU, which has the unit for itself.
TEST_F(LateRun, CopiesStatesOfTheGpuBetweenTwoUpdates) {
  for (const double ratio : {0.0, 0.4}) {
    const plan::Plan plan = plan_of({.clipping = 0, .ratio = ratio}, true);
    ASSERT_TRUE(plan::device_has_all_of(plan.units.front()));
    const Copies expected =
        copies_of_first_step(plan, test::make_stand_in_gpu(plan.planned.tiers.device), 1);
    for (const std::uint64_t seed : test::schedules(10)) {
      SCOPED_TRACE("schedule " + std::to_string(seed));
      const test::LateGpu gpu({.memory_bytes = plan.planned.tiers.device, .seed = seed});
      EXPECT_EQ(copies_of_first_step(plan, gpu.run_device(), kSteps), expected);
      EXPECT_THAT(gpu.violations(), IsEmpty());
      if (HasFailure()) return;
    }
  }
}

// The device takes the last tiles of a unit and the cores the first, so both have some.
TEST_F(LateRun, CoresAndDeviceShareAUnit) {
  const Case each{.weights = Home::none, .clipping = 0, .gpu_updates = true};
  plan::Plan plan = plan_of(each, true);
  ASSERT_GE(plan.rings.update.device_tiles, 3);
  plan.rings.update.tile_elements = 1024;
  std::uint64_t all = 0;
  for (const zero::UnitLayout& layout : plan.layouts) all += kSteps * layout.flat_count;
  const Result expected = run_at_once(each);
  std::uint64_t by_device = 0;
  std::uint64_t by_both = 0;
  for (const std::uint64_t seed : test::schedules(10)) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const Result late = run_late(plan, seed);
    expect_same(late, expected);
    by_device += late.device_elements;
    by_both += all;
    if (HasFailure()) return;
  }
  // Who takes a tile depends on the threads, so one schedule alone says nothing.
  EXPECT_GT(by_device, 0U);
  EXPECT_LT(by_device, by_both);
}

TEST_F(LateRun, StepsWithoutUpdatesComeBeforeTheScaleFits) {
  const Case each{.clipping = 0, .fp16 = true};
  const plan::Plan plan = plan_of(each, true);
  const Result result = run_late(plan, 1);
  EXPECT_FALSE(result.updated.front());
  EXPECT_TRUE(result.updated.back());
}

}  // namespace
}  // namespace sluice::train
