#include "sluice/config/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::config {
namespace {

// Two roundings of values around 1e-1: the hand-computed decimals are given to 12 digits.
constexpr double kTolerance = 1e-12;

TEST(LearningRate, IsConstantWithoutAScheduler) {
  EXPECT_EQ(learning_rate(SchedulerConfig{}, 0.25, 1), 0.25);
  EXPECT_EQ(learning_rate(SchedulerConfig{}, 0.25, 1'000'000), 0.25);
}

TEST(LearningRate, StepsCountFromOne) {
  EXPECT_THROW(learning_rate(SchedulerConfig{}, 0.25, 0), InvalidArgument);
}

TEST(LearningRate, OfAConfigurationUsesItsOptimizerAndScheduler) {
  TrainConfig config;
  config.optimizer.lr = 0.5;
  config.scheduler = WarmupLR{.warmup_min_lr = 0.1,
                              .warmup_max_lr = std::nullopt,
                              .warmup_num_steps = 2,
                              .warmup_type = WarmupType::linear};
  EXPECT_EQ(learning_rate(config, 1), 0.1);
  EXPECT_EQ(learning_rate(config, 4), 0.5);
}

TEST(WarmupLR, LinearRunsTheFirstTwoStepsAtTheMinimum) {
  const SchedulerConfig s = WarmupLR{.warmup_min_lr = 0.1,
                                     .warmup_max_lr = 0.5,
                                     .warmup_num_steps = 4,
                                     .warmup_type = WarmupType::linear};
  // i = step - 2: below 0 the minimum, then i / 4 of the way.
  const double expected[] = {0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5};
  for (int step = 1; step <= 7; ++step) {
    EXPECT_NEAR(learning_rate(s, 9.0, step), expected[step - 1], kTolerance) << step;
  }
}

TEST(WarmupLR, LogReachesTheMaximumOneStepBeforeTheWarmUpEnds) {
  const SchedulerConfig s = WarmupLR{.warmup_min_lr = 0,
                                     .warmup_max_lr = 1,
                                     .warmup_num_steps = 4,
                                     .warmup_type = WarmupType::log};
  // ln(i + 1) / ln 4 = log2(i + 1) / 2.
  EXPECT_EQ(learning_rate(s, 9.0, 1), 0);
  EXPECT_EQ(learning_rate(s, 9.0, 2), 0);
  EXPECT_NEAR(learning_rate(s, 9.0, 3), 0.5, kTolerance);
  EXPECT_NEAR(learning_rate(s, 9.0, 4), 0.792481250360578, kTolerance);
  EXPECT_NEAR(learning_rate(s, 9.0, 5), 1, kTolerance);
  EXPECT_EQ(learning_rate(s, 9.0, 6), 1);
}

TEST(WarmupLR, WarmsUpForAtLeastTwoSteps) {
  const SchedulerConfig s = WarmupLR{.warmup_min_lr = 0,
                                     .warmup_max_lr = 1,
                                     .warmup_num_steps = 1,
                                     .warmup_type = WarmupType::linear};
  EXPECT_EQ(learning_rate(s, 9.0, 3), 0.5);
  EXPECT_EQ(learning_rate(s, 9.0, 4), 1);
}

TEST(WarmupDecayLR, DecaysLinearlyToTheMinimumAndStaysThere) {
  const SchedulerConfig s = WarmupDecayLR{.total_num_steps = 8,
                                          .warmup_min_lr = 0.2,
                                          .warmup_max_lr = 1.0,
                                          .warmup_num_steps = 4,
                                          .warmup_type = WarmupType::linear};
  // From i = 4 on (8 - i) / 4 of the way from 0.2 to 1.
  const double expected[] = {0.2, 0.2, 0.4, 0.6, 0.8, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2};
  for (int step = 1; step <= 11; ++step) {
    EXPECT_NEAR(learning_rate(s, 9.0, step), expected[step - 1], kTolerance) << step;
  }
}

TEST(WarmupDecayLR, WithoutRoomToDecayEndsAtTheMinimum) {
  const SchedulerConfig s = WarmupDecayLR{.total_num_steps = 3,
                                          .warmup_min_lr = 0,
                                          .warmup_max_lr = 1.0,
                                          .warmup_num_steps = 4,
                                          .warmup_type = WarmupType::linear};
  EXPECT_EQ(learning_rate(s, 9.0, 5), 0.75);
  EXPECT_EQ(learning_rate(s, 9.0, 6), 0);
}

TEST(WarmupCosineLR, LinearWarmUpJumpsOverThePeak) {
  const SchedulerConfig s = WarmupCosineLR{.total_num_steps = 8,
                                           .warmup_min_ratio = 0,
                                           .warmup_num_steps = 4,
                                           .cos_min_ratio = 0.1,
                                           .warmup_type = WarmupType::linear};
  // Warm-up i / 4; then 0.1 + 0.9 (1 + cos(pi (i - 3) / 4)) / 2; all times 0.1. cos(pi / 4) =
  // 0.70710678118655.
  const double expected[] = {0,    0,   0.025, 0.05, 0.075, 0.0868198051534, 0.055, 0.0231801948466,
                             0.01, 0.01};
  for (int step = 1; step <= 10; ++step) {
    EXPECT_NEAR(learning_rate(s, 0.1, step), expected[step - 1], kTolerance) << step;
  }
}

TEST(WarmupCosineLR, RunsTheFirstStepAtZeroWhateverTheMinimumRatio) {
  const SchedulerConfig s = WarmupCosineLR{.total_num_steps = 8,
                                           .warmup_min_ratio = 0.5,
                                           .warmup_num_steps = 4,
                                           .cos_min_ratio = 0,
                                           .warmup_type = WarmupType::log};
  EXPECT_EQ(learning_rate(s, 2.0, 1), 0);
  EXPECT_EQ(learning_rate(s, 2.0, 2), 1.0);
  EXPECT_NEAR(learning_rate(s, 2.0, 3), 1.5, kTolerance);
  EXPECT_NEAR(learning_rate(s, 2.0, 5), 2.0, kTolerance);  // the peak is reached with log
  EXPECT_NEAR(learning_rate(s, 2.0, 1000), 0, kTolerance);
}

TEST(WarmupCosineLR, WithoutRoomToDecayStaysAtTheFloor) {
  const SchedulerConfig s = WarmupCosineLR{.total_num_steps = 2,
                                           .warmup_min_ratio = 0,
                                           .warmup_num_steps = 4,
                                           .cos_min_ratio = 0.25,
                                           .warmup_type = WarmupType::linear};
  EXPECT_NEAR(learning_rate(s, 1.0, 6), 0.25, kTolerance);
  EXPECT_NEAR(learning_rate(s, 1.0, 99), 0.25, kTolerance);
}

TEST(StepsAtZero, BeginBehindTheLastStepWithARate) {
  const SchedulerConfig schedules[] = {
      WarmupDecayLR{.total_num_steps = 30, .warmup_num_steps = 4},
      WarmupDecayLR{.total_num_steps = 4, .warmup_num_steps = 30},
      WarmupCosineLR{.total_num_steps = 30, .warmup_num_steps = 4, .cos_min_ratio = 0},
      WarmupCosineLR{.total_num_steps = 1, .warmup_num_steps = 30, .cos_min_ratio = 0},
      LinearLR{.start_factor = 1, .end_factor = 0, .total_iters = 32},
      PolynomialLR{.total_iters = 30}};
  for (const SchedulerConfig& schedule : schedules) {
    std::int64_t last = 3;  // the warm-up of some begins at 0
    while (learning_rate(schedule, 0.5, last + 1) > 0) ++last;
    EXPECT_EQ(steps_at_zero(schedule, last), "") << schedule.index();
    const std::string line = steps_at_zero(schedule, last + 1);
    EXPECT_EQ(line.find("the learning rate is 0 from step " + std::to_string(last + 1) + " on"), 0U)
        << schedule.index() << ": " << line;
    EXPECT_NE(line.find("or give --steps " + std::to_string(last)), std::string::npos) << line;
  }
  EXPECT_EQ(steps_at_zero(schedules[0], 60),
            "the learning rate is 0 from step 32 on, and the run has 60 steps: those change no "
            "weight. The schedule ends there (scheduler.params.total_num_steps: 30); set it to 60, "
            "or give --steps 31");
}

TEST(StepsAtZero, AreNoneWhereTheScheduleEndsAboveZero) {
  for (const SchedulerConfig& schedule :
       {SchedulerConfig(), SchedulerConfig(WarmupLR()),
        SchedulerConfig(WarmupDecayLR{.total_num_steps = 9, .warmup_min_lr = 1e-5}),
        SchedulerConfig(WarmupCosineLR{.total_num_steps = 9}), SchedulerConfig(LinearLR()),
        SchedulerConfig(CosineAnnealingLR{.t_max = 9})})
    EXPECT_EQ(steps_at_zero(schedule, 1000), "") << schedule.index();
}

}  // namespace
}  // namespace sluice::config
