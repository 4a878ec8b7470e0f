// Schedules in a run: resumed in the middle, and the betas that OneCycle sets.

#include <gmock/gmock.h>

#include "cli/json_text.hpp"
#include "train_support.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 25;
constexpr const char* kSchedules[] = {
    R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 22, "warmup_num_steps": 4}})",
    R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 2e-3,
        "cycle_first_step_size": 10, "decay_step_size": 3, "decay_lr_rate": 0.5}})",
    R"({"type": "CosineAnnealingLR", "params": {"T_max": 20, "eta_min": 1e-5}})",
    R"({"type": "ExponentialLR", "params": {"gamma": 0.95}})"};

TrainSetup with_schedule(const std::string& schedule) {
  TrainSetup setup;
  setup.scheduler = schedule;
  return setup;
}

TEST(Schedule, ResumedInTheMiddleGoesOnAsIfUninterrupted) {
  for (const char* schedule : kSchedules) {
    TrainFolder whole, halves;
    whole.set(with_schedule(schedule));
    halves.set(with_schedule(schedule));
    ASSERT_EQ(whole.train("report", kSteps).exit_code, 0);
    ASSERT_EQ(halves.train("report", 18).exit_code, 0);
    ASSERT_EQ(halves.train("report", kSteps, {"--resume"}).exit_code, 0);
    const auto rates = column(whole, "report", "lr");
    ASSERT_EQ(rates.size(), static_cast<std::size_t>(kSteps));
    EXPECT_EQ(column(halves, "report", "lr"), rates) << schedule;
    EXPECT_EQ(column(halves, "report", "loss"), column(whole, "report", "loss")) << schedule;
    EXPECT_EQ(exported(halves, halves.swap()), exported(whole, whole.swap())) << schedule;
    // As config rates shows them, to the last bit.
    const ProgramResult shown = run_sluice(
        {"config", "rates", whole.config(), "--steps", std::to_string(kSteps), "--json"});
    const Json::Value list = parse_json(shown.out)["rates"];
    for (int step = 1; step <= kSteps; ++step)
      EXPECT_EQ(std::stod(rates[static_cast<std::size_t>(step - 1)]), list[step - 1].asDouble())
          << schedule << ", step " << step;
  }
}

TEST(Schedule, OfOneCycleSetsTheBetasOfTheUpdate) {
  // Between equal ends the cycle is constant.
  TrainSetup cycle = with_schedule(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-3,
      "cycle_max_lr": 1e-3, "cycle_min_mom": 0.6, "cycle_max_mom": 0.6}})");
  TrainSetup constant = with_schedule("null");
  constant.optimizer =
      R"("type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.6, 0.99]})";
  TrainFolder of_cycle, of_constant, of_defaults;
  of_cycle.set(cycle);
  of_constant.set(constant);
  of_defaults.set(with_schedule("null"));
  for (const TrainFolder* folder : {&of_cycle, &of_constant, &of_defaults})
    ASSERT_EQ(folder->train("report", 12).exit_code, 0);
  EXPECT_EQ(column(of_cycle, "report", "loss"), column(of_constant, "report", "loss"));
  EXPECT_EQ(exported(of_cycle, of_cycle.swap()), exported(of_constant, of_constant.swap()));
  EXPECT_NE(column(of_cycle, "report", "loss"), column(of_defaults, "report", "loss"));
}

TEST(Schedule, WhoseFirstBetaWouldReachOneIsRefusedBeforeTheRun) {
  TrainFolder folder;
  folder.set(with_schedule(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-4,
      "cycle_max_lr": 1e-3, "cycle_first_step_size": 5, "decay_step_size": 1,
      "decay_mom_rate": 0.02}})"));
  // 0.9 (1 + 0.02 k) is below 1 up to k = 5, and step s has k = s - 11.
  expect_refused(
      folder.train("report", 17), 2,
      {"scheduler.params.decay_mom_rate: beta1 grows to 1 after step 16, and the run has "
       "17 steps; lower it, or give --steps 16"});
  EXPECT_EQ(folder.train("report", 16).exit_code, 0);
}

TEST(Schedule, OfAnotherKindIsNamedWhenARunIsResumed) {
  TrainFolder folder;
  folder.set(with_schedule(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-3,
      "cycle_max_lr": 1e-3, "cycle_min_mom": 0.6, "cycle_max_mom": 0.6}})"));
  ASSERT_EQ(folder.train("report", 3).exit_code, 0);
  folder.set(with_schedule(R"({"type": "OneCycle", "params": {"cycle_min_lr": 1e-3,
      "cycle_max_lr": 1e-3, "cycle_min_mom": 0.7, "cycle_max_mom": 0.7}})"));
  const ProgramResult result = folder.train("report", 4, {"--resume"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resumed with another learning rate: beta1 was 0.6; is 0.7 at "
                                    "updates 1, 10, 100, 1,000, 10,000, 100,000"));
}

TEST(Schedule, ThatEndsAtZeroBeforeTheRunDoesIsWarnedOf) {
  TrainFolder folder;
  folder.set(with_schedule(
      R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 4, "warmup_num_steps": 2}})"));
  const char* const warning = "the learning rate is 0 from step 6 on, and the run has 7 steps";
  const ProgramResult fits = folder.train("report", 5);
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_EQ(fits.err.find("the learning rate is 0"), std::string::npos) << fits.err;
  const ProgramResult longer = folder.train("report", 7, {"--resume"});
  EXPECT_EQ(longer.exit_code, 0) << longer.err;
  EXPECT_THAT(longer.err, HasSubstr(warning));
  const ProgramResult checked =
      run_sluice({"config", "check", folder.config(), "--steps", "7", "--json"});
  EXPECT_THAT(checked.out, HasSubstr(std::string("warning: ") + warning));
  const ProgramResult planned = run_sluice(
      {"plan", "--config", folder.config(), "--model", folder.model(), "--steps", "7", "--json"});
  EXPECT_THAT(planned.err, HasSubstr(warning));
}

}  // namespace
}  // namespace sluice::test
