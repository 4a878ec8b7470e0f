// Predictions: the slowest resource bounds a step, and the others overlap with it.

#include "sluice/plan/prediction.hpp"
#include "sluice/plan/make_plan.hpp"
#include "sluice/plan/plan.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <numeric>

#include "file_text.hpp"
#include "plans.hpp"
#include "temp_dir.hpp"

namespace sluice::plan {
namespace {

// A second of computing per block and step: 0.25 forward, 0.25 + 0.5 backward.
MachineRates compute_only() {
  MachineRates rates;
  rates.block.first = rates.block.next = {.forward = 0.25, .forward_saving = 0.25, .backward = 0.5};
  return rates;
}

Plan plan_of(Device optimizer, double clipping, bool overlap = true, int layers = 8) {
  auto config = train_config(optimizer, Device::cpu, 1024, 1024);
  config.gradient_clipping = clipping;
  config.gradient_accumulation_steps = 1;
  config.train_batch_size = config.micro_batch_size;
  config.sluice.overlap = overlap;
  config.sluice.activations = config::Activations::recompute;
  return make_plan(config, model_config(layers, 256), Placement::configured, roomy_machine());
}

// Elements of the blocks.
double elements(const Plan& plan) {
  return std::accumulate(
      plan.layouts.begin(), plan.layouts.end(), 0.0,
      [](double sum, const auto& layout) { return sum + static_cast<double>(layout.flat_count); });
}

TEST(Prediction, AStepThatOnlyComputesTakesThatLong) {
  const Prediction prediction = predict(plan_of(Device::cpu, 0), compute_only());
  EXPECT_NEAR(prediction.step_seconds, 8.0, 1e-9);
  EXPECT_NEAR(prediction.compute_seconds, 8.0, 1e-9);
  EXPECT_EQ(prediction.bound_by, "compute");
  EXPECT_EQ(prediction.update_seconds, 0);
}

TEST(Prediction, KeptActivationsAreNotComputedAgain) {
  Plan plan = plan_of(Device::cpu, 0);
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) plan.units[u].activations_saved = true;
  EXPECT_NEAR(predict(plan, compute_only()).step_seconds, 6.0, 1e-9);
}

// Three passes of one micro-batch, and one of three: two of them are computed again.
TEST(Prediction, ALargerLastPassComputesSomeActivationsAgain) {
  Plan plan = plan_of(Device::cpu, 0);
  for (std::size_t u = 0; u + 1 < plan.units.size(); ++u) plan.units[u].activations_saved = true;
  plan.config.gradient_accumulation_steps = 6;
  plan.schedule.passes.last = 3;
  ASSERT_EQ(plan.passes(), 4U);
  EXPECT_NEAR(predict(plan, compute_only()).compute_seconds, 6 * 6.0 + 2 * 2.0, 1e-9);
}

TEST(Prediction, MicroBatchesAfterTheFirstFindTheWeightsInTheCaches) {
  auto config = train_config(Device::cpu, Device::cpu, 1024, 1024);
  config.gradient_clipping = 0;
  config.sluice.activations = config::Activations::recompute;
  MachineRates rates = compute_only();
  rates.block.first = {.forward = 0.5, .forward_saving = 0.5, .backward = 1.0};
  const Plan plan = make_plan(config, model_config(8, 256), Placement::configured, roomy_machine());
  EXPECT_NEAR(predict(plan, rates).compute_seconds, 8 * (2 + 3), 1e-9);  // four micro-batches
}

TEST(Prediction, OnTheHostTheOptimizerTakesTheCoresFromTheModel) {
  const Plan plan = plan_of(Device::cpu, 0);
  MachineRates rates = compute_only();
  rates.update_elements_per_second = elements(plan) / 2;  // two seconds
  const Prediction prediction = predict(plan, rates);
  EXPECT_NEAR(prediction.update_seconds, 2.0, 1e-9);
  EXPECT_NEAR(prediction.step_seconds, 10.0, 0.05);
}

// Rates at which the drive takes `seconds` for the states of `plan`.
MachineRates with_drive(const Plan& plan, double seconds) {
  MachineRates rates = compute_only();
  rates.read_bytes_per_second = rates.write_bytes_per_second = rates.swap_bytes_per_second =
      static_cast<double>(plan.traffic.nvme_read_bytes + plan.traffic.nvme_written_bytes) / seconds;
  return rates;
}

TEST(Prediction, WithoutClippingADriveIsHiddenBehindComputingAndTheOtherWayRound) {
  Plan plan = plan_of(Device::nvme, 0);
  plan.rings.update.read_ahead_tiles = 0;
  const Prediction fast = predict(plan, with_drive(plan, 6));
  EXPECT_NEAR(fast.drive_seconds, 6, 0.01);
  // The first units' gradients come last, and the next step needs their weights first. So about one
  // of their updates, a ninth of all, overlaps with nothing.
  EXPECT_NEAR(fast.step_seconds, 8 + 6.0 / 9, 0.3);
  EXPECT_EQ(fast.bound_by, "compute");
  const Prediction slow = predict(plan, with_drive(plan, 16));
  EXPECT_GE(slow.step_seconds, 16);
  EXPECT_LT(slow.step_seconds, 18);
  EXPECT_EQ(slow.bound_by, "drive");
}

TEST(Prediction, StatesThatAreReadAheadHideTheFirstUnitsUpdates) {
  const Plan ahead = plan_of(Device::nvme, 0);
  ASSERT_GT(ahead.rings.update.read_ahead_tiles, 0);
  Plan none = ahead;
  none.rings.update.read_ahead_tiles = 0;
  EXPECT_NEAR(predict(ahead, with_drive(ahead, 6)).step_seconds, 8, 0.1);
  for (const double seconds : {4, 6, 8, 10, 16}) {
    const MachineRates rates = with_drive(ahead, seconds);
    const double best = std::max(8.0, seconds);
    EXPECT_LT(predict(ahead, rates).step_seconds - best,
              0.6 * (predict(none, rates).step_seconds - best))
        << seconds;
  }
}

TEST(Prediction, WithClippingUpdatesHideBehindTheForwardPassOnly) {
  Plan plan = plan_of(Device::nvme, 1);
  plan.rings.update.read_ahead_tiles = 0;  // else states are read before the norm is known
  // Backward takes 6 seconds, forward 2.
  EXPECT_NEAR(predict(plan, with_drive(plan, 16)).step_seconds, 22, 1);
}

TEST(Prediction, WithoutOverlapEverythingAddsUp) {
  const Plan plan = plan_of(Device::nvme, 0, /*overlap=*/false);
  EXPECT_NEAR(predict(plan, with_drive(plan, 5)).step_seconds, 13, 0.05);
}

TEST(Prediction, ACacheMakesADriveBoundStepFaster) {
  auto config = train_config(Device::nvme, Device::cpu, 1024, 1024);
  config.gradient_clipping = 0;
  const auto model = model_config(8, 256);
  const Plan none = make_plan(config, model, Placement::configured, roomy_machine());
  const MachineRates rates = with_drive(none, 100);
  double before = predict(none, rates).step_seconds;
  for (const std::uint64_t share : {25, 50, 75}) {
    config.sluice.cache_bytes = {ByteBudget::Kind::percent, share};
    const double now =
        predict(make_plan(config, model, Placement::configured, roomy_machine()), rates)
            .step_seconds;
    EXPECT_LT(now, before) << share;
    before = now;
  }
}

TEST(LargestPlan, HasTheMostBlocksThatFit) {
  const auto config = train_config(Device::cpu, Device::cpu, 256, 100);
  const auto machine = roomy_machine();
  const auto largest = largest_plan(config, model_config(1, 256), Placement::configured, machine);
  ASSERT_TRUE(largest.has_value());
  const auto layers = static_cast<int>(largest->model.n_layer);
  EXPECT_GT(layers, 1);
  EXPECT_TRUE(
      try_plan(config, model_config(layers, 256), Placement::configured, machine).has_value());
  EXPECT_FALSE(
      try_plan(config, model_config(layers + 1, 256), Placement::configured, machine).has_value());
  EXPECT_FALSE(largest_plan(train_config(Device::cpu, Device::cpu, 1, 1), model_config(1, 256),
                            Placement::configured, machine)
                   .has_value());
}

TEST(Rates, ComeBackUnderTheirKeyOnly) {
  const test::TempDir directory;
  const std::string path = directory.file("deep/rates.json");
  EXPECT_FALSE(load_rates(path, "a").has_value());
  MachineRates rates = compute_only();
  rates.swap_bytes_per_second = 2.5e9;
  save_rates(path, "a", {rates, "today"});
  rates.swap_bytes_per_second = 1e9;
  save_rates(path, "b", {rates, "later"});
  const auto a = load_rates(path, "a");
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(a->measured, "today");
  EXPECT_EQ(a->rates.swap_bytes_per_second, 2.5e9);
  EXPECT_EQ(a->rates.block.next.backward, 0.5);
  EXPECT_EQ(load_rates(path, "b")->rates.swap_bytes_per_second, 1e9);
  EXPECT_FALSE(load_rates(path, "c").has_value());
  save_rates(path, "a", {rates, "again"});
  EXPECT_EQ(load_rates(path, "a")->measured, "again");
  for (int i = 0; i < 200; ++i) save_rates(path, "n" + std::to_string(i), {rates, "x"});
  EXPECT_FALSE(load_rates(path, "a").has_value()) << "old ones are dropped";
  EXPECT_TRUE(load_rates(path, "n199").has_value());
  EXPECT_LT(std::filesystem::file_size(path), 200'000U);
}

TEST(Rates, NoneThatNoMachineHas) {
  const test::TempDir directory;
  const std::string path = directory.file("rates.json");
  for (const double speed : {1e-320, 0.5, 1e19, -1.0}) {
    MachineRates rates = compute_only();
    rates.checksum_bytes_per_second = speed;
    save_rates(path, "a", {rates, "today"});
    EXPECT_FALSE(load_rates(path, "a").has_value()) << speed;
  }
  MachineRates rates = compute_only();
  rates.block.next.forward = 1e300;
  save_rates(path, "a", {rates, "today"});
  EXPECT_FALSE(load_rates(path, "a").has_value());
  save_rates(path, "a", {compute_only(), "to\x1b[31mday"});
  EXPECT_EQ(load_rates(path, "a")->measured, "to [31mday");
}

TEST(Rates, GoToTheFileThatALinkLeadsTo) {
  const test::TempDir directory;
  const std::string link = directory.file("link.json");
  std::filesystem::create_symlink("shared/rates.json", link);
  check_rates_path(link);
  for (const char* when : {"today", "again"}) save_rates(link, "a", {compute_only(), when});
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(load_rates(directory.file("shared/rates.json"), "a")->measured, "again");
}

TEST(Rates, WhatEndsNeverIsNotReadOrReplaced) {
  const test::TempDir directory;
  const std::string pipe = directory.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, directory.path(), std::string("/dev/zero")}) {
    EXPECT_FALSE(load_rates(path, "a").has_value()) << path;
    EXPECT_THROW(require_rates(path), InvalidArgument) << path;
    EXPECT_THROW(check_rates_path(path), InvalidArgument) << path;
    EXPECT_THROW(save_rates(path, "a", {compute_only(), "today"}), InvalidArgument) << path;
  }
}

TEST(Rates, AFileThatCannotBeMadeIsNamedWithTheReason) {
  const test::TempDir directory;
  check_rates_path(directory.file("new/rates.json"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "what is only tried is not left";
  const std::string path = directory.file(std::string(254, 'r'));  // too long for what is renamed
  for (const auto& call :
       {std::function<void()>([&] { check_rates_path(path); }), std::function<void()>([&] {
          save_rates(path, "a", {compute_only(), "today"});
        })}) {
    try {
      call();
      ADD_FAILURE();
    } catch (const IoError& error) {
      EXPECT_EQ(error.code().value(), ENAMETOOLONG) << error.what();
    }
  }
}

TEST(Rates, AFileOfSomethingElseHoldsNoneAndIsNotReplaced) {
  const test::TempDir directory;
  const std::string path = directory.file("rates.json");
  save_rates(path, "a", {compute_only(), "today"});
  const std::string whole = test::file_text(path);
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{\"sluice_rates\": [1, {\"key\": 3}]}"),
        std::string(100000, '['), whole.substr(0, whole.size() / 2),
        std::string(R"({"sluice_rates": [{"key": "a", "measured": "x", "rates": {}}]})"),
        std::string(R"({"sluice_rates": [{"key": "a", "measured": "x", "rates": 7}]})")}) {
    test::write_file(path, text);
    EXPECT_FALSE(load_rates(path, "a").has_value()) << text.substr(0, 80);
    if (!text.empty() && !(text.starts_with("{\"sluice_rates\"") && text.back() == '}')) {
      EXPECT_THROW(save_rates(path, "b", {compute_only(), "today"}), InvalidArgument);
      continue;
    }
    save_rates(path, "b", {compute_only(), "today"});
    EXPECT_TRUE(load_rates(path, "b").has_value());
  }
}

TEST(Rates, DependOnShapeThreadsAndFormatButNotOnDepth) {
  auto config = train_config(Device::cpu, Device::cpu, 512, 512);
  const auto key = [&](const config::ModelConfig& model) {
    return rates_key(make_plan(config, model, Placement::configured, roomy_machine()));
  };
  const std::string usual = key(model_config(4, 256));
  EXPECT_EQ(key(model_config(6, 256)), usual);
  EXPECT_NE(key(model_config(4, 128)), usual);
  config::ModelConfig wide = model_config(4, 256);
  wide.n_inner = 8 * wide.n_embd;
  EXPECT_NE(key(wide), usual);
  config::ModelConfig untied = model_config(4, 256);
  untied.tie_word_embeddings = false;
  EXPECT_NE(key(untied), usual);
  config.sluice.threads.compute = 3;
  EXPECT_NE(key(model_config(4, 256)), usual);
  config.sluice.threads.compute.reset();
  config.sluice.moments = config::MomentFormat::bf16;
  EXPECT_NE(key(model_config(4, 256)), usual);
}

}  // namespace
}  // namespace sluice::plan
