// A loop of the user's own keeps to its budgets, and moves what the plan says.

#include <gmock/gmock.h>

#include "engine_support.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/outside_budget.hpp"
#include "user_loop/activation_choice.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// The plan of Model, from its layouts alone.
plan::Plan own_plan(const config::TrainConfig& config) {
  Model model;
  plan::OwnModel own;
  const auto add = [&](const std::string& name, torch::nn::Module& module) {
    zero::UnitLayout layout;
    layout.name = name;
    for (const auto& param : module.named_parameters()) {
      if (name == "head" && param.key() == "weight") continue;
      zero::add_param(layout, name + "." + param.key(), param.value().sizes().vec());
    }
    zero::finish_layout(layout, 1);
    own.calls.push_back({own.layouts.size()});
    own.layouts.push_back(std::move(layout));
  };
  add("embed", *model.embed);
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    add("h." + std::to_string(i), *model.blocks[i]);
  add("head", *model.head);
  own.calls.back().insert(own.calls.back().begin(), 0);
  return plan::make_plan(config, own, plan::Placement::configured, plan::probe_machine(config));
}

class OwnLoopTraffic : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(OwnLoopTraffic, OfAStepIsWhatThePlanSays) {
  const auto& [optimizer, param] = GetParam();
  for (const std::string keys : {"", "\"overlap\": false, "}) {
    SCOPED_TRACE(keys);
    const TempDir swap;
    LoopSetup setup;
    setup.optimizer_device = optimizer;
    setup.param_device = param;
    setup.sluice_keys = keys;
    const config::TrainConfig config = config_of(setup, swap.path());
    Trained trained(config, Model());
    trained.engine.initialize();
    const plan::Plan plan = own_plan(config);
    int index = 0;
    for (int i = 0; i < 3 * setup.accumulation; ++i) trained.train(index++);
    trained.engine.finish();
    const train::EngineCounters before = trained.engine.counters();
    for (int i = 0; i < 2 * setup.accumulation; ++i) trained.train(index++);
    trained.engine.finish();
    const train::EngineCounters after = trained.engine.counters();
    EXPECT_EQ(after.h2d_bytes - before.h2d_bytes, 2 * plan.traffic.h2d_bytes);
    EXPECT_EQ(after.d2h_bytes - before.d2h_bytes, 2 * plan.traffic.d2h_bytes);
    EXPECT_EQ(after.nvme_read_bytes - before.nvme_read_bytes, 2 * plan.traffic.nvme_read_bytes);
    EXPECT_EQ(after.nvme_written_bytes - before.nvme_written_bytes,
              2 * plan.traffic.nvme_written_bytes);
  }
}
INSTANTIATE_TEST_SUITE_P(Placements, OwnLoopTraffic,
                         ::testing::Values(std::pair{"none", "none"}, std::pair{"cpu", "none"},
                                           std::pair{"cpu", "cpu"}, std::pair{"nvme", "cpu"},
                                           std::pair{"nvme", "nvme"}));

// Graphs of one block take 3 MiB or so of activations at this batch.
TEST(OwnLoopMemory, AutoKeepsTheGraphsThatTheBudgetHasRoomFor) {
  const auto train = [](const std::string& activations, const std::string& budget) {
    LoopSetup setup;
    setup.accumulation = 1;
    setup.device_bytes = budget;
    setup.sluice_keys = "\"activations\": \"" + activations + "\", ";
    Trained trained(config_of(setup), Model(0, 6));
    trained.engine.initialize();
    std::vector<double> losses;
    const Batch small = batch(0);
    const Batch large{small.inputs.repeat({100, 1}), small.targets.repeat({100, 1})};
    for (int i = 0; i < 5; ++i) {
      trained.engine.backward(trained.loss(large));
      losses.push_back(trained.engine.step().loss);
    }
    return std::pair{losses, trained.engine.counters()};
  };
  const auto kept = train("keep", "64MiB");
  const auto recomputed = train("recompute", "64MiB");
  const std::uint64_t between =
      (kept.second.device_peak_bytes + recomputed.second.device_peak_bytes) / 2;
  ASSERT_GT(kept.second.device_peak_bytes, recomputed.second.device_peak_bytes + (4U << 20U));
  const std::string budget = std::to_string(between);
  EXPECT_THROW(train("keep", budget), std::exception);
  const auto chosen = train("auto", budget);
  EXPECT_LE(chosen.second.device_peak_bytes, between);
  EXPECT_EQ(chosen.first, kept.first);
  EXPECT_EQ(chosen.first, recomputed.first);
  EXPECT_EQ(kept.second.recomputed_calls, 0U);
  EXPECT_EQ(recomputed.second.recomputed_calls, 5U * 8U);
  // Two micro-batches measure; then some units are kept and some are not.
  EXPECT_GT(chosen.second.recomputed_calls, 2U * 8U);
  EXPECT_LT(chosen.second.recomputed_calls, 5U * 8U);
}

TEST(ActivationChoice, SavesTheLastUnitsFirstAndWholeOnes) {
  train::ActivationChoice choice(config::Activations::automatic, 1000, 3);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (const std::size_t unit : {0U, 1U, 2U, 1U}) {
      EXPECT_FALSE(choice.saves(unit));
      choice.measured(unit, 100);
    }
    choice.end_micro_batch(650);
  }
  EXPECT_FALSE(choice.saves(0));  // 650 + 200 + 100 + 100
  EXPECT_TRUE(choice.saves(1));   // called twice
  EXPECT_TRUE(choice.saves(2));
}

TEST(OwnLoopMemory, CopiesTakeNothingOfTheDeviceBudget) {
  constexpr std::int64_t kLarge = 1 << 20;  // elements
  Tensor large;
  std::vector<Tensor> copies;
  {
    Trained trained(config_of({.device_bytes = "2MiB"}), Model());
    trained.engine.initialize();
    {
      const train::OutsideBudget outside;
      const train::OutsideBudget inner;
      large = torch::ones({kLarge});
    }
    EXPECT_ANY_THROW(torch::ones({kLarge}));
    std::size_t copied_bytes = 0;
    while (copied_bytes < (2U << 20U)) {
      copies.push_back(trained.engine.parameter("h.0.up.weight"));
      copied_bytes += copies.back().nbytes();
    }
    EXPECT_NO_THROW(trained.train(0));
  }
  EXPECT_EQ(large.sum().item<double>(), kLarge) << "it outlives the engine";
  EXPECT_NO_THROW(torch::ones({kLarge}));
}

TEST(OwnLoopMemory, NothingGrowsOverManySteps) {
  Trained trained(config_of({}), Model());
  trained.engine.initialize();
  for (int i = 0; i < 20; ++i) trained.train(i);
  const train::EngineCounters early = trained.engine.counters();
  for (int i = 0; i < 200; ++i) trained.train(i);
  const train::EngineCounters late = trained.engine.counters();
  EXPECT_EQ(early.device_peak_bytes, late.device_peak_bytes);
  EXPECT_EQ(early.host_peak_bytes, late.host_peak_bytes);
}

}  // namespace
}  // namespace sluice::test
