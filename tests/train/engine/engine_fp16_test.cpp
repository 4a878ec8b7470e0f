// A loop of the user's own in fp16: its losses are scaled for it, on every tier with the same bits,
// through overflows and checkpoints.

#include <algorithm>
#include <cmath>

#include "captured_log.hpp"
#include "engine_support.hpp"

namespace sluice::test {
namespace {

constexpr double kDropout = 0.1;

LoopSetup fp16(const std::string& keys = "") {
  LoopSetup setup;
  setup.bf16 = false;
  setup.more_keys = "\"fp16\": {" + keys + "\"enabled\": true}, ";
  return setup;
}

// Overflows first, then a scale that moves within few steps.
constexpr const char* kMoving =
    "\"initial_scale_power\": 22, \"hysteresis\": 1, \"loss_scale_window\": 3, ";

// Scales and losses of the steps from here on.
struct Scales {
  std::vector<double> scales;
  std::vector<double> losses;
  std::vector<bool> updated;
};
Scales take_steps(Trained& trained, int first, int end, int accumulation) {
  Scales course;
  for (int i = first * accumulation; i < end * accumulation; ++i) {
    const StepResult result = trained.train(i);
    if ((i + 1) % accumulation != 0) continue;
    course.scales.push_back(result.loss_scale);
    course.losses.push_back(result.loss);
    course.updated.push_back(result.updated);
  }
  return course;
}

TEST(OwnLoopFp16, EveryPlacementEqualsResidentThroughOverflows) {
  for (const double clipping : {0.0, 1.0}) {
    LoopSetup setup = fp16(kMoving);
    setup.clipping = clipping;
    const Course resident = run(setup, kDropout, 20, true);
    for (const auto& [optimizer, param] : std::vector<std::pair<const char*, const char*>>{
             {"cpu", "cpu"}, {"nvme", "cpu"}, {"nvme", "nvme"}}) {
      SCOPED_TRACE(std::string("optimizer ") + optimizer + ", param " + param);
      setup.optimizer_device = optimizer;
      setup.param_device = param;
      expect_same(run(setup, kDropout), resident);
    }
  }
}

TEST(OwnLoopFp16, OverflowsAreSkippedUntilTheScaleFits) {
  CapturedLog log;
  Trained trained(config_of(fp16("\"initial_scale_power\": 24, \"hysteresis\": 1, ")), Model());
  trained.engine.initialize();
  const std::string before = bytes_of(trained.engine.parameter("h.0.up.weight"));
  const Scales first = take_steps(trained, 0, 1, 2);
  EXPECT_EQ(first.scales[0], std::ldexp(1.0, 24));
  ASSERT_FALSE(first.updated[0]) << "nothing overflowed";
  EXPECT_EQ(bytes_of(trained.engine.parameter("h.0.up.weight")), before);
  const Scales rest = take_steps(trained, 1, 30, 2);
  EXPECT_EQ(rest.scales[0], std::ldexp(1.0, 23));
  EXPECT_TRUE(rest.updated.back());
  EXPECT_LT(rest.losses.back(), 0.8 * first.losses[0]);
  EXPECT_TRUE(log.contains("no update; loss scale 16777216, now 8388608"));
}

// A loss in fp16 ends at 65504: a larger scale of it is an overflow, not an error.
TEST(OwnLoopFp16, ALossInFp16IsScaledByWhatItHolds) {
  const auto updated = [](const std::string& scale) {
    Trained trained(config_of(fp16("\"loss_scale\": " + scale + ", ")), Model());
    trained.engine.initialize();
    StepResult result;
    for (int i = 0; i < 2; ++i) {
      trained.engine.backward(trained.loss(batch(i)).to(torch::kFloat16));
      result = trained.engine.step();
    }
    return result.updated;
  };
  EXPECT_TRUE(updated("4096"));
  EXPECT_FALSE(updated("262144"));
}

TEST(OwnLoopFp16, EqualsFp32UpToTheRoundingOfFp16) {
  LoopSetup setup = fp16("\"loss_scale\": 1024, ");
  setup.epsilon = 1e-3;
  LoopSetup exact{.bf16 = false, .epsilon = 1e-3};
  const Course expected = run(exact);
  const Course got = run(setup);
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  // As tests/train/program/fp16_test.cpp has it, with 24 tokens to average over.
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], 0x1p-8) << i;
    EXPECT_NEAR(got.norms[i], expected.norms[i], 0x1p-7 * expected.norms[i]) << i;
  }
  EXPECT_NE(got.losses, expected.losses);
}

TEST(OwnLoopFp16, ACheckpointHasTheScaleAndWhereItsWindowIs) {
  const TempDir checkpoints;
  const config::TrainConfig config = config_of(fp16(kMoving));
  Scales expected;
  {
    Trained trained(config, Model());
    trained.engine.initialize();
    take_steps(trained, 0, 14, 2);
    trained.engine.save_checkpoint(checkpoints.path());
    expected = take_steps(trained, 14, 26, 2);
  }
  EXPECT_TRUE(std::adjacent_find(expected.scales.begin(), expected.scales.end(), std::less<>()) !=
              expected.scales.end())
      << "the scale has not grown";
  Trained trained(config, Model());
  trained.engine.initialize();
  EXPECT_EQ(trained.engine.load_checkpoint(checkpoints.path()), 14);
  const Scales got = take_steps(trained, 14, 26, 2);
  EXPECT_EQ(got.scales, expected.scales);
  EXPECT_EQ(got.losses, expected.losses);
}

TEST(OwnLoopFp16, ResumesTheSwapDirectoryWithItsScale) {
  const TempDir swap;
  LoopSetup setup = fp16(kMoving);
  setup.optimizer_device = setup.param_device = "nvme";
  const config::TrainConfig config = config_of(setup, swap.path());
  Scales expected;
  {
    const TempDir other;
    Trained whole(config_of(setup, other.path()), Model());
    whole.engine.initialize();
    take_steps(whole, 0, 13, 2);
    expected = take_steps(whole, 13, 20, 2);
  }
  {
    Trained trained(config, Model());
    trained.engine.initialize();
    take_steps(trained, 0, 13, 2);
  }
  Trained trained(config, Model(), {.resume = true});
  trained.engine.initialize();
  const Scales got = take_steps(trained, 13, 20, 2);
  EXPECT_EQ(got.scales, expected.scales);
  EXPECT_EQ(got.losses, expected.losses);
}

TEST(OwnLoopFp16, AStaticScaleStays) {
  Trained fixed(config_of(fp16("\"loss_scale\": 256, ")), Model());
  fixed.engine.initialize();
  EXPECT_EQ(take_steps(fixed, 0, 3, 2).scales, std::vector<double>(3, 256));
}

TEST(OwnLoopFp16, AtItsMinimumAScaleThrowsAndTheWeightsAreUntouched) {
  Trained trained(config_of(fp16("\"initial_scale_power\": 24, \"min_loss_scale\": 16777216, "
                                 "\"hysteresis\": 1, ")),
                  Model());
  trained.engine.initialize();
  const std::string before = bytes_of(trained.engine.parameter("h.0.up.weight"));
  trained.train(0);
  const std::string error = message_of([&] { trained.train(1); });
  EXPECT_NE(error.find("the loss scale is at its minimum, 16777216"), std::string::npos) << error;
  EXPECT_NE(error.find("min_loss_scale"), std::string::npos) << error;
  EXPECT_EQ(bytes_of(trained.engine.parameter("h.0.up.weight")), before);
}

}  // namespace
}  // namespace sluice::test
