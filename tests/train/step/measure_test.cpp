// The measures of a run over many steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "measure/last_values.hpp"
#include "measure/slowdown.hpp"

namespace sluice::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(SlowdownWatch, TellsOnceOfADriveThatStaysSlow) {
  SlowdownWatch watch;
  int told = 0;
  for (int step = 1; step <= 60; ++step) {
    const auto slowdown = watch.add(step, step < 30 ? 2e9 : 2e8, 1.0);
    if (!slowdown) continue;
    ++told;
    EXPECT_EQ(slowdown->since_step, 30);
    EXPECT_DOUBLE_EQ(slowdown->before, 2e9);
    EXPECT_DOUBLE_EQ(slowdown->now, 2e8);
  }
  EXPECT_EQ(told, 1);
}

TEST(SlowdownWatch, IsSilentAboutMoodsAndSingleSteps) {
  SlowdownWatch watch;
  for (int step = 1; step <= 200; ++step) {
    double rate = step % 40 < 20 ? 2e9 : 0.9e9;
    if (step % 7 == 0 || step % 7 == 1) rate = 1e7;
    EXPECT_FALSE(watch.add(step, rate, 1.0).has_value()) << step;
  }
}

TEST(SlowdownWatch, TellsAgainAfterARecovery) {
  SlowdownWatch watch;
  int told = 0;
  for (int step = 1; step <= 120; ++step)
    told += watch.add(step, (step / 20) % 2 == 0 ? 2e9 : 2e8, 1.0) ? 1 : 0;
  EXPECT_EQ(told, 3);
}

TEST(SlowdownWatch, TakesShortStepsTogether) {
  SlowdownWatch watch;
  std::int64_t since = 0;
  for (int step = 1; step <= 600 && since == 0; ++step) {
    // Rates of single steps alternate; the mean of consecutive steps does not.
    const double rate = (step % 2 == 0 ? 1.9e9 : 0.1e9) * (step < 400 ? 1 : 0.1);
    if (const auto slowdown = watch.add(step, rate * 0.01, 0.01)) since = slowdown->since_step;
  }
  EXPECT_GE(since, 400);
  EXPECT_LT(since, 420);
}

TEST(LastValues, KeepsAllUntilItIsFull) {
  LastValues<int> last(3);
  EXPECT_THAT(last.values(), IsEmpty());
  last.add(1);
  last.add(2);
  EXPECT_THAT(last.values(), ElementsAre(1, 2));
}

TEST(LastValues, KeepsTheLastOnes) {
  LastValues<int> last(3);
  last.add(1);
  last.add(2);
  for (int i = 3; i <= 100; ++i) {
    last.add(i);
    EXPECT_THAT(last.values(), UnorderedElementsAre(i - 2, i - 1, i));
  }
}

TEST(LastValues, TakesNoMemoryAfterTheStart) {
  LastValues<double> last(5);
  const double* const at = last.values().data();
  for (int i = 0; i < 50; ++i) last.add(i);
  EXPECT_EQ(last.values().data(), at);
}

}  // namespace
}  // namespace sluice::train
