// Upper halves of split masters whose only home is the weights on the GPU: the bits and the
// checkpoints of halves with a home in host memory, and the planned bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "file_text.hpp"
#include "moved_homes.hpp"
#include "saved/checkpoint.hpp"
#include "saved/find_source.hpp"
#include "saved/saved_state.hpp"
#include "sluice/models/checkpoints.hpp"
#include "update/state_updater.hpp"
#include "update/tile_placement.hpp"

namespace sluice::train {
namespace {

using config::MomentFormat;
using test::Home;
using test::StepResults;
using testing::Contains;
using testing::StartsWith;

using Case = test::RunCase;

std::vector<std::size_t> units_without_half(const plan::Plan& plan) {
  std::vector<std::size_t> units;
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    if (plan::half_copied_to_tile(plan.units[u], plan.state_format)) units.push_back(u);
  return units;
}

class HalvesInWeights : public test::MovedHomes {
 protected:
  // The plan of the case with the halves of all units there, or in host memory.
  plan::Plan plan_with(Case each, bool halves, const test::Steps& steps = {}) const {
    each.halves_in_weights = halves;
    plan::Plan plan = plan_of_case(each, steps);
    EXPECT_EQ(units_without_half(plan).empty(), !halves);
    return plan;
  }
  // In several tiles of a unit.
  StepResults run_in_tiles(plan::Plan plan) const {
    fit_to_homes(plan);
    return run(plan);
  }
  plan::Plan resident_plan(Case each) const {
    each.states = each.weights = Home::none;
    each.gpu_updates = false;
    each.ratio = 1;
    each.placement = plan::Placement::resident;
    return plan_of_case(each);
  }

  // Commits a checkpoint after two steps, takes a third one and ends as a killed run does. Returns
  // the bytes of the states.
  std::string save(plan::Plan plan) const {
    std::filesystem::remove_all(folder());
    std::filesystem::create_directory(folder());
    keep_checkpoints(plan);
    RunResources resources(plan, {SwapMode::create}, nullptr,
                           test::make_stand_in_gpu(plan.planned.tiers.device));
    initialise_states(resources, kSeed, std::nullopt);
    StepRunner runner(resources, kSeed);
    CheckpointWriter writer(resources);
    Progress progress;
    begin_progress(progress, *resources.communicator);
    StepResults results;
    take_steps(resources, runner, progress, 2, results);
    commit_step(resources, writer, progress, {.seed = kSeed, .settings = {}}, false);
    take_steps(resources, runner, progress, 1, results);
    writer.finish(progress);
    const std::vector<models::Checkpoint> found = models::list_checkpoints(folder());
    EXPECT_EQ(found.size(), 1U);
    return sluice::test::file_text(found.front().path + "/states.0.swap");
  }
  // The two steps after the checkpoint.
  StepResults resume(plan::Plan plan) const {
    keep_checkpoints(plan);
    offload::HeldDirectories held;
    const RunSource source = find_source(plan.config, plan.placement, Resume::yes, held);
    EXPECT_TRUE(source.state && source.state->step == 2);
    RunResources resources(plan, {SwapMode::create, &held}, nullptr,
                           test::make_stand_in_gpu(plan.planned.tiers.device));
    restore_states(resources, source);
    Progress progress;
    resume_progress(progress, source, *resources.communicator);
    StepRunner runner(resources, kSeed);
    StepResults results;
    take_steps(resources, runner, progress, 2, results);
    results.weights = test::weights_of(resources);
    return results;
  }

 private:
  std::string folder() const { return file("checkpoints"); }
  void keep_checkpoints(plan::Plan& plan) const {
    plan.config.sluice.checkpoints.directory = folder();
    plan.config.sluice.checkpoints.every = 2;
    plan.config.sluice.checkpoints.keep = 10;
  }
};

TEST_P(HalvesInWeights, HaveTheBitsOfThoseInHostMemoryAndOfAResidentRun) {
  const StepResults in_weights = run_in_tiles(plan_with(GetParam(), true));
  expect_same(in_weights, run_in_tiles(plan_with(GetParam(), false)));
  expect_same(in_weights, run(resident_plan(GetParam())));
}

TEST_F(HalvesInWeights, HaveTheBitsWithOneMicroBatch) {
  for (const double clipping : {0.0, 1e-3}) {
    const Case each{.weights = Home::none, .clipping = clipping, .dropout = 0.1};
    expect_same(run_in_tiles(plan_with(each, true, {.micro_batches = 1})),
                run_in_tiles(plan_with(each, false, {.micro_batches = 1})));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, HalvesInWeights,
    testing::Values(
        Case{.name = "no_clipping", .weights = Home::none, .clipping = 0},
        Case{.name = "clipping", .weights = Home::none, .clipping = 1e-3, .dropout = 0.1},
        Case{.name = "untied", .weights = Home::none, .clipping = 1, .tied = false},
        Case{.name = "passes", .weights = Home::none, .clipping = 1, .per_pass = 1},
        Case{.name = "fp32_sums", .weights = Home::none, .clipping = 1, .fp32_sums = true},
        Case{.name = "bf16_moments",
             .weights = Home::none,
             .clipping = 0,
             .moments = MomentFormat::bf16},
        Case{.name = "gpu_updates", .weights = Home::none, .gpu_updates = true},
        Case{.name = "half_of_states_on_gpu", .weights = Home::none, .clipping = 0, .ratio = 0.4}),
    [](const auto& each) { return std::string(each.param.name); });

// Whoever has written a checkpoint, it has the same bytes, and whoever reads it goes on alike.
TEST_F(HalvesInWeights, ChangeNoByteOfACheckpoint) {
  const Case each{.weights = Home::none, .clipping = 1e-3, .dropout = 0.1};
  const plan::Plan in_weights = plan_with(each, true);
  const plan::Plan in_host = plan_with(each, false);
  const plan::Plan resident = resident_plan(each);
  const StepResults whole = run(in_host);
  const std::string states = save(resident);
  for (const plan::Plan& writer : {in_host, in_weights}) {
    EXPECT_TRUE(save(writer) == states);
    for (const plan::Plan& reader : {in_host, in_weights, resident}) {
      const StepResults rest = resume(reader);
      EXPECT_EQ(rest.losses, std::vector(whole.losses.begin() + 2, whole.losses.end()));
      ASSERT_EQ(rest.weights.size(), whole.weights.size());
      for (std::size_t u = 0; u < rest.weights.size(); ++u)
        EXPECT_TRUE(torch::equal(rest.weights[u], whole.weights[u])) << u;
    }
  }
}

// Where host memory is short. All rows of host memory are measured: states, and all beside them.
TEST_F(HalvesInWeights, TakeThePlannedBytes) {
  for (const double clipping : {0.0, 1.0}) {
    Case each{.weights = Home::none, .clipping = clipping, .tied = false, .layers = 12};
    const plan::MachineFacts machine = machine_of(each, true);
    const plan::Plan roomy = plan_on(each, machine);
    EXPECT_TRUE(units_without_half(roomy).empty());
    each.host_bytes = roomy.planned.tiers.host;
    plan::Plan plan = roomy;
    while (units_without_half(plan).empty()) {
      each.host_bytes -= 16U << 10U;
      ASSERT_GT(each.host_bytes, roomy.planned.tiers.host / 2);
      plan = plan_on(each, machine);
    }
    EXPECT_LE(plan.planned.tiers.host, each.host_bytes);
    EXPECT_THAT(plan.choices, Contains(StartsWith("upper halves of the split master: those of ")));
    RunResources resources(plan, {SwapMode::create}, nullptr,
                           test::make_stand_in_gpu(plan.planned.tiers.device));
    std::uint64_t state_bytes = 0;
    for (std::size_t u = 0; u < plan.units.size(); ++u)
      for (const PartHome& part : resources.updater->placement().home(u))
        state_bytes += offload::pool_bytes(part.memory.size_bytes());
    for (const plan::PlanRow& row : plan.planned.rows) {
      if (row.component != "optimizer states") continue;
      EXPECT_EQ(row.bytes.host, state_bytes);
    }
    initialise_states(resources, kSeed, std::nullopt);
    const UpdateCounters before = resources.updater->counters();
    StepRunner runner(resources, kSeed);
    Progress progress;
    StepResults results;
    take_steps(resources, runner, progress, 1, results);
    const UpdateCounters after = resources.updater->counters();
    std::uint64_t h2d = 0;
    std::uint64_t d2h = 0;
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      const std::uint64_t bytes = 2 * plan.layouts[u].flat_count;
      const bool copied = plan::half_copied_to_tile(plan.units[u], plan.state_format);
      h2d += bytes;
      d2h += (copied ? bytes : 0) + (plan::tile_holds_gradient(plan.units[u]) ? bytes : 0);
    }
    EXPECT_EQ(after.h2d_bytes - before.h2d_bytes, h2d);
    EXPECT_EQ(after.d2h_bytes - before.d2h_bytes, d2h);
    EXPECT_EQ(resources.host_pool->usage().peak_live_bytes, plan.planned.tiers.host);
  }
}

}  // namespace
}  // namespace sluice::train
