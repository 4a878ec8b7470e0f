// The loss scale against tables that were written by hand from DeepSpeed's rules.

#include "step/loss_scaler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sluice/base/error.hpp"
#include "update/update_settings.hpp"

namespace sluice::train {
namespace {

using config::NonFinite;
using ::testing::HasSubstr;

config::Fp16Config dynamic(int power, std::int64_t window, int hysteresis) {
  config::Fp16Config config;
  config.enabled = true;
  config.initial_scale_power = power;
  config.loss_scale_window = window;
  config.hysteresis = hysteresis;
  return config;
}

// One step: 'o' overflows, 'g' is good.
void take(LossScaler& scaler, char step) {
  if (step == 'o') {
    EXPECT_FALSE(scaler.why_stop(NonFinite::skip).has_value());
    scaler.overflowed();
  } else {
    scaler.updated();
  }
}

// After each step of `steps` the scale is that of `scales`; and so it is when the scaler is saved
// and restored behind every step.
void expect_scales(const config::Fp16Config& config, const std::string& steps,
                   const std::vector<double>& scales) {
  ASSERT_EQ(steps.size(), scales.size());
  LossScaler whole(config);
  LossScaler saved(config);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    take(whole, steps[i]);
    take(saved, steps[i]);
    EXPECT_EQ(whole.scale(), scales[i]) << "after step " << i << " of " << steps;
    LossScaler next(config);
    next.restore(saved.state());
    saved = next;
    EXPECT_EQ(saved.scale(), whole.scale()) << "restored after step " << i << " of " << steps;
    EXPECT_EQ(saved.state(), whole.state());
  }
}

TEST(LossScaler, DoublesAfterAWholeWindowAndOneStep) {
  expect_scales(dynamic(4, 3, 2), "ggggggggggg", {16, 16, 16, 32, 32, 32, 64, 64, 64, 128, 128});
  expect_scales(dynamic(0, 1, 1), "gggg", {1, 2, 4, 8});
}

TEST(LossScaler, AnOverflowBeginsTheWindowAnew) {
  expect_scales(dynamic(4, 3, 1), "gggogggggggo", {16, 16, 16, 8, 8, 8, 8, 16, 16, 16, 32, 16});
}

TEST(LossScaler, HysteresisLetsTheFirstOverflowsPassUntilTheScaleGrows) {
  expect_scales(dynamic(4, 3, 2), "oogogggg", {16, 8, 8, 4, 4, 4, 4, 8});
  // Grown: counted anew.
  expect_scales(dynamic(4, 2, 3), "ooogggooo", {16, 16, 8, 8, 8, 16, 16, 16, 8});
}

// DeepSpeed's FP16_Optimizer, which it takes without ZeRO.
TEST(LossScaler, AtStageZeroEveryOverflowHalvesAndTheLeastScaleStays) {
  config::Fp16Config config = dynamic(4, 3, 3);
  config.min_loss_scale = 4;
  config.is_unpartitioned = true;
  expect_scales(config, "oooogggg", {8, 4, 4, 4, 4, 4, 4, 8});
  config.consecutive_hysteresis = true;
  expect_scales(config, "ogo", {8, 8, 4});
  LossScaler scaler(config);
  for (int i = 0; i < 3; ++i) scaler.overflowed();
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_FALSE(scaler.why_stop(NonFinite::skip).has_value());
  EXPECT_TRUE(scaler.why_stop(NonFinite::stop).has_value());
}

TEST(LossScaler, ConsecutiveHysteresisCountsAnewAfterEveryGoodStep) {
  config::Fp16Config config = dynamic(4, 100, 2);
  config.consecutive_hysteresis = true;
  expect_scales(config, "ogogooogo", {16, 16, 16, 16, 16, 8, 4, 4, 4});
}

TEST(LossScaler, StopsAtTheMinimumWhereDeepSpeedRaises) {
  config::Fp16Config config = dynamic(4, 100, 2);
  config.min_loss_scale = 3;
  LossScaler scaler(config);
  for (const char step : std::string("oooo")) take(scaler, step);
  EXPECT_EQ(scaler.scale(), 3) << "16, 8, 4, and not 2";
  const auto stop = scaler.why_stop(NonFinite::skip);
  ASSERT_TRUE(stop.has_value());
  EXPECT_THAT(stop->reason, HasSubstr("at its minimum, 3"));
  EXPECT_THAT(stop->advice, HasSubstr("min_loss_scale"));
}

TEST(LossScaler, AtTheMinimumOverflowsPassWhileThereIsHysteresis) {
  LossScaler scaler(dynamic(0, 100, 2));
  take(scaler, 'o');
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_TRUE(scaler.why_stop(NonFinite::skip).has_value());
}

TEST(LossScaler, NonFiniteStopWaitsUntilASmallerScaleCannotBeTheCure) {
  EXPECT_FALSE(LossScaler(dynamic(1, 100, 2)).why_stop(NonFinite::stop).has_value());
  const auto at_minimum = LossScaler(dynamic(0, 100, 2)).why_stop(NonFinite::stop);
  ASSERT_TRUE(at_minimum.has_value());
  EXPECT_THAT(at_minimum->reason, HasSubstr("non_finite"));
  config::Fp16Config fixed;
  fixed.enabled = true;
  fixed.loss_scale = 128;
  EXPECT_TRUE(LossScaler(fixed).why_stop(NonFinite::stop).has_value());
  EXPECT_FALSE(LossScaler(fixed).why_stop(NonFinite::skip).has_value());
  EXPECT_TRUE(LossScaler().why_stop(NonFinite::stop).has_value());
  EXPECT_FALSE(LossScaler().why_stop(NonFinite::skip).has_value());
}

TEST(LossScaler, AStaticScaleAndNoFp16StayAsTheyAre) {
  config::Fp16Config fixed;
  fixed.enabled = true;
  fixed.loss_scale = 100;
  fixed.loss_scale_window = 1;
  LossScaler scaler(fixed);
  LossScaler none;
  for (const char step : std::string("oggogog")) {
    take(scaler, step);
    take(none, step);
    EXPECT_EQ(scaler.scale(), 100);
    EXPECT_EQ(none.scale(), 1);
  }
  EXPECT_EQ(scaler.reported(), 100);
  EXPECT_EQ(none.reported(), std::nullopt);
  EXPECT_EQ(scaler.state(), std::nullopt);
  EXPECT_EQ(none.state(), std::nullopt);
  EXPECT_EQ(none.overflowed(), "") << "nothing to say of a scale";
}

TEST(LossScaler, SaysTheOldAndTheNewScale) {
  LossScaler scaler(dynamic(16, 1000, 2));
  EXPECT_EQ(scaler.overflowed(), "; loss scale 65536, now 65536 (hysteresis)");
  EXPECT_EQ(scaler.overflowed(), "; loss scale 65536, now 32768");
}

TEST(LossScaler, GrowsNoFurtherThanFp32Goes) {
  LossScaler scaler(dynamic(120, 1, 1));
  for (int i = 0; i < 50; ++i) scaler.updated();
  EXPECT_EQ(scaler.scale(), std::ldexp(1.0, 127));
  EXPECT_TRUE(std::isfinite(static_cast<float>(scaler.scale())));
  EXPECT_GT(gradient_factor(1.0, 1.0, scaler.scale()), 0.0F);
}

TEST(LossScaler, IsRestoredWithinTheLimitsOfItsConfiguration) {
  config::Fp16Config config = dynamic(10, 100, 2);
  config.min_loss_scale = 64;
  LossScaler scaler(config);
  scaler.restore(models::LossScaleState{.scale = 16, .good_steps = 5, .hysteresis_left = 7});
  EXPECT_EQ(scaler.state(),
            (models::LossScaleState{.scale = 64, .good_steps = 5, .hysteresis_left = 2}));
  scaler.restore(std::nullopt);  // the run had a static scale until now
  EXPECT_EQ(scaler.scale(), 1024);
}

TEST(GradientFactor, UnscalesAndClips) {
  EXPECT_EQ(gradient_factor(0, 5, 1), 1.0F);
  EXPECT_EQ(gradient_factor(0, 5, 1024), 1.0F / 1024);
  EXPECT_EQ(gradient_factor(10, 5, 1024), 1.0F / 1024);
  EXPECT_FLOAT_EQ(gradient_factor(1, 4, 1024), 1.0F / 4096);
  // The reciprocals of the largest and the least scale of the configuration.
  EXPECT_GT(gradient_factor(0, 5, 1e38), 0.0F);
  EXPECT_TRUE(std::isfinite(gradient_factor(0, 5, 1e-30)));
}

}  // namespace
}  // namespace sluice::train
