// fp16 with a loss scale, as users of the program see it: training like fp32, overflows that are
// recovered from, the same bits on every tier and after a resume.

#include <cmath>

#include "train_support.hpp"

namespace sluice::test {
namespace {

// `keys`: of the section fp16, each ending with a comma.
TrainSetup fp16(const std::string& keys = "") {
  TrainSetup setup;
  setup.bf16 = false;
  setup.accumulation = 2;
  setup.more_keys = "\"fp16\": {" + keys + "\"enabled\": true}, ";
  return setup;
}

// Overflows first, then a scale that moves within few steps.
constexpr const char* kMoving =
    "\"initial_scale_power\": 24, \"hysteresis\": 1, \"loss_scale_window\": 3, ";

std::vector<double> numbers(const std::vector<std::string>& texts) {
  std::vector<double> values;
  for (const std::string& text : texts) values.push_back(std::stod(text));
  return values;
}

TEST(Fp16, TrainsAsFp32DoesUpToItsRounding) {
  constexpr int kSteps = 30;
  TrainFolder folder;
  TrainSetup setup;
  setup.bf16 = false;
  setup.accumulation = 2;
  const Outcome exact = outcome_of(folder, setup, kSteps, kResident);
  // Adam does not notice a scale that stays: this one is doubled again and again.
  const TrainSetup scaled = fp16("\"initial_scale_power\": 8, \"loss_scale_window\": 4, ");
  const Outcome rounded = outcome_of(folder, scaled, kSteps, kResident);
  EXPECT_EQ(column(folder, "report", "skipped"), std::vector<std::string>(kSteps, "false"));
  EXPECT_EQ(column(folder, "report", "loss_scale").front(), "256");
  EXPECT_EQ(column(folder, "report", "loss_scale").back(), "32768");
  const std::vector<double> expected = numbers(exact.losses);
  const std::vector<double> losses = numbers(rounded.losses);
  const std::vector<double> expected_norms = numbers(exact.norms);
  const std::vector<double> norms = numbers(rounded.norms);
  ASSERT_EQ(losses.size(), expected.size());
  EXPECT_LT(losses.back(), 0.75 * losses.front()) << "nothing was learned";
  EXPECT_NE(losses, expected) << "this was fp32";
  // A logit of about 1 is rounded to 2^-11, and a mean over 128 tokens averages such errors. The
  // way back rounds as often again. This run in bf16, which rounds to 2^-8, is further away.
  constexpr double kTolerance = 0x1p-11;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], kTolerance) << "step " << i + 1;
    EXPECT_NEAR(norms[i], expected_norms[i], 4 * kTolerance * expected_norms[i])
        << "step " << i + 1;
  }
}

TEST(Fp16, OverflowsAreSkippedAndLowerTheScaleUntilStepsAreGood) {
  constexpr int kSteps = 40;
  TrainFolder folder;
  folder.set(fp16("\"initial_scale_power\": 30, \"hysteresis\": 2, "));
  const ProgramResult result = folder.train("report", kSteps);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto skipped = column(folder, "report", "skipped");
  const auto scales = numbers(column(folder, "report", "loss_scale"));
  const auto rates = column(folder, "report", "lr");
  const auto losses = numbers(column(folder, "report", "loss"));
  ASSERT_EQ(scales.size(), static_cast<std::size_t>(kSteps));
  std::size_t first_good = 0;
  while (first_good < skipped.size() && skipped[first_good] == "true") ++first_good;
  ASSERT_GE(first_good, 4U) << "nothing overflowed";
  ASSERT_LT(first_good, 25U) << "the scale did not come down";
  EXPECT_EQ(scales[0], std::ldexp(1.0, 30));
  EXPECT_EQ(scales[1], std::ldexp(1.0, 30)) << "hysteresis";
  for (std::size_t i = 2; i <= first_good; ++i) EXPECT_EQ(scales[i], scales[i - 1] / 2) << i;
  for (std::size_t i = 0; i < first_good; ++i) EXPECT_EQ(rates[i], rates[0]) << "no update";
  EXPECT_LT(losses.back(), 0.9 * losses.front()) << "nothing was learned afterwards";
  EXPECT_NE(result.err.find("no update; loss scale 1073741824, now 536870912"), std::string::npos)
      << result.err;
  EXPECT_NE(folder.report_text("report").find("\"loss_scale\":" +
                                              column(folder, "report", "loss_scale").back()),
            std::string::npos);
}

TEST(Fp16, EveryPlacementHasTheSameBitsAlsoWithoutClipping) {
  constexpr int kSteps = 16;
  TrainFolder folder;
  for (const double clipping : {0.0, 0.5}) {
    TrainSetup setup = fp16(kMoving);
    setup.clipping = clipping;
    const Outcome resident = outcome_of(folder, setup, kSteps, kResident);
    const auto scales = column(folder, "report", "loss_scale");
    const auto skipped = column(folder, "report", "skipped");
    EXPECT_EQ(skipped.front(), "true");
    EXPECT_GE(std::count(skipped.begin(), skipped.end(), "false"), 4);
    const auto expect_as_resident = [&](const std::string& keys) {
      SCOPED_TRACE("optimizer " + setup.optimizer_device + ", param " + setup.param_device + keys);
      setup.sluice_keys = keys;
      expect_same(outcome_of(folder, setup, kSteps), resident);
      EXPECT_EQ(column(folder, "report", "loss_scale"), scales);
      EXPECT_EQ(column(folder, "report", "skipped"), skipped);
    };
    for (const auto& [optimizer, param] : std::vector<std::pair<const char*, const char*>>{
             {"cpu", "none"}, {"cpu", "cpu"}, {"nvme", "cpu"}, {"nvme", "nvme"}}) {
      setup.optimizer_device = optimizer;
      setup.param_device = param;
      expect_as_resident("");
    }
    expect_as_resident("\"overlap\": false, ");
  }
}

TEST(Fp16, ResumedAnywhereInAWindowTheLossesAndScalesAreThoseOfAWholeRun) {
  constexpr int kSteps = 20;
  TrainFolder folder;
  for (const std::string optimizer : {"nvme", "cpu"}) {
    TrainSetup setup = fp16(kMoving);
    setup.optimizer_device = setup.param_device = optimizer;
    if (optimizer == "cpu")
      setup.sluice_keys =
          "\"checkpoint_dir\": \"" + folder.checkpoints() + "\", \"checkpoint_every\": 1, ";
    folder.clear_swap();
    folder.set(setup);
    ASSERT_EQ(folder.train("whole-" + optimizer, kSteps).exit_code, 0);
    folder.clear_swap();
    // While it comes down, in the first window, in the middle of one, and at its end.
    for (const int until : {2, 9, 14, 15, 16, kSteps}) {
      const ProgramResult part = folder.train("parts-" + optimizer, until, {"--resume"});
      ASSERT_EQ(part.exit_code, 0) << part.err;
    }
    for (const char* key : {"loss", "grad_norm", "loss_scale", "skipped"})
      EXPECT_EQ(column(folder, "parts-" + optimizer, key),
                column(folder, "whole-" + optimizer, key))
          << key;
    const auto scales = numbers(column(folder, "whole-" + optimizer, "loss_scale"));
    EXPECT_TRUE(std::adjacent_find(scales.begin(), scales.end(), std::less<>()) != scales.end())
        << "the scale has not grown in any window";
  }
}

TEST(Fp16, AStaticScaleStaysAndItsOverflowsSkipOrStop) {
  TrainFolder folder;
  folder.set(fp16("\"loss_scale\": 1024, "));
  ASSERT_EQ(folder.train("fixed", 3).exit_code, 0);
  EXPECT_EQ(column(folder, "fixed", "loss_scale"), std::vector<std::string>(3, "1024"));
  EXPECT_EQ(column(folder, "fixed", "skipped"), std::vector<std::string>(3, "false"));

  TrainSetup setup = fp16("\"loss_scale\": 1e30, ");
  folder.clear_swap();
  folder.set(setup);
  const ProgramResult skips = folder.train("skips", 3);
  EXPECT_EQ(skips.exit_code, 0) << skips.err;
  EXPECT_EQ(column(folder, "skips", "skipped"), std::vector<std::string>(3, "true"));
  setup.sluice_keys = "\"non_finite\": \"stop\", ";
  folder.clear_swap();
  folder.set(setup);
  expect_refused(folder.train("stops", 3), 1, {"step 1: ", "is not finite, and", "non_finite"});
}

TEST(Fp16, AScaleAtItsMinimumEndsTheRunWithWhatWasCommitted) {
  TrainFolder folder;
  TrainSetup setup =
      fp16("\"initial_scale_power\": 30, \"hysteresis\": 1, \"min_loss_scale\": 268435456, ");
  // Not the cure while the scale can be lowered.
  setup.sluice_keys = "\"non_finite\": \"stop\", ";
  folder.set(setup);
  expect_refused(
      folder.train("report", 9), 1,
      {"step 3: ", "the loss scale is at its minimum, 268435456", "at step 2", "min_loss_scale"});
  EXPECT_EQ(column(folder, "report", "skipped"), std::vector<std::string>(2, "true"));

  TrainSetup lower = fp16("\"initial_scale_power\": 30, \"hysteresis\": 1, ");
  folder.set(lower);
  const ProgramResult rest = folder.train("report", 30, {"--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE(rest.err.find("resumed with another loss scale"), std::string::npos) << rest.err;
  EXPECT_EQ(numbers(column(folder, "report", "loss_scale"))[2], 268435456) << "where it was";
  EXPECT_EQ(column(folder, "report", "skipped").back(), "false");
}

TEST(Fp16, ARunKeepsItsTypeAndOthersHaveNoScale) {
  TrainFolder folder;
  folder.set({});
  ASSERT_EQ(folder.train("bf16", 2).exit_code, 0);
  EXPECT_TRUE(column(folder, "bf16", "loss_scale").empty());
  EXPECT_EQ(folder.report_text("bf16").find("loss_scale"), std::string::npos);
  folder.set(fp16());
  expect_refused(folder.train("bf16", 3, {"--resume"}), 4,
                 {"was trained in bf16, the configuration asks for fp16",
                  "set \"bf16\": {\"enabled\": true}", "; or begin anew with its weights alone"});
}

}  // namespace
}  // namespace sluice::test
