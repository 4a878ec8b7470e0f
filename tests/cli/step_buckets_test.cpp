#include "report/step_buckets.hpp"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

StepValues with_loss(double loss) {
  StepValues values;
  values[StepValue::loss] = loss;
  return values;
}

TEST(StepBuckets, KeepEveryStepWhileThereIsRoom) {
  StepBuckets buckets;
  for (int step = 1; step <= 800; ++step) buckets.add(step, with_loss(step));
  ASSERT_EQ(buckets.all().size(), StepBuckets::kMost);
  EXPECT_EQ(buckets.width(), 1U);
  EXPECT_EQ(buckets.all()[41][StepValue::loss].mean(), 42);
}

TEST(StepBuckets, KeepMeansAndExtremesOfAnyNumberOfSteps) {
  StepBuckets buckets;
  constexpr int kSteps = 1'000'003;
  for (int step = 1; step <= kSteps; ++step)
    buckets.add(step, with_loss(step == 500'000 ? 1e6 : step % 2));
  EXPECT_LE(buckets.all().size(), StepBuckets::kMost);
  EXPECT_GE(buckets.all().size(), StepBuckets::kMost / 2);
  ValueRange all;
  std::uint64_t steps = 0;
  std::int64_t next = 1;
  for (const StepBuckets::Bucket& bucket : buckets.all()) {
    EXPECT_EQ(bucket.first_step, next);
    next = bucket.last_step + 1;
    steps += bucket.steps;
    all.add(bucket[StepValue::loss]);
  }
  EXPECT_EQ(steps, static_cast<std::uint64_t>(kSteps));
  EXPECT_EQ(next, kSteps + 1);
  EXPECT_EQ(all.count, static_cast<std::uint64_t>(kSteps));
  EXPECT_EQ(all.sum, 1e6 + 500'002);
  EXPECT_EQ(all.high, 1e6);
  EXPECT_EQ(all.low, 0);
}

TEST(StepBuckets, LeaveOutWhatIsNotANumber) {
  StepBuckets buckets;
  buckets.add(1, with_loss(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(buckets.all()[0][StepValue::loss].count, 0U);
  EXPECT_TRUE(std::isnan(buckets.all()[0][StepValue::loss].mean()));
}

}  // namespace
}  // namespace sluice::cli
