#include "sluice/nvme/paired_ratios.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sluice/base/error.hpp"

namespace sluice::nvme {
namespace {

TEST(PairedRatios, QuantilesAreInterpolated) {
  EXPECT_EQ(quantile_of({}, 0.5), 0);
  EXPECT_EQ(quantile_of({3}, 0.9), 3);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 0), 1);
  EXPECT_THROW(quantile_of({4, 1}, -1), InvalidArgument);
  EXPECT_THROW(quantile_of({4, 1}, 1.5), InvalidArgument);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 1), 4);
}

TEST(PairedRatios, TheIntervalHoldsTheMedianAndNarrowsWithMorePairs) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> noise(1.0, 0.2);
  const auto width_of = [&](int count) {
    std::vector<double> ratios;
    ratios.reserve(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) ratios.push_back(noise(random));
    const RatioSummary summary = summarize_ratios(ratios);
    EXPECT_LE(summary.interval_begin, summary.median);
    EXPECT_GE(summary.interval_end, summary.median);
    EXPECT_LE(summary.lower_quartile, summary.median);
    EXPECT_GE(summary.upper_quartile, summary.median);
    return summary.interval_end - summary.interval_begin;
  };
  // The median of n normal values has a standard deviation of 1.2533 sigma / sqrt(n); nine in ten
  // lie within 1.645 of those on either side.
  EXPECT_NEAR(width_of(1000), 2 * 1.645 * 1.2533 * 0.2 / std::sqrt(1000.0), 0.012);
  EXPECT_GT(width_of(20), width_of(2000));
}

TEST(PairedRatios, OfNoneAllIsZeroAndOfOneAllIsThat) {
  EXPECT_EQ(summarize_ratios({}).median, 0);
  EXPECT_EQ(summarize_ratios({1.5}).interval_begin, 1.5);
  EXPECT_EQ(summarize_ratios({1.5}).interval_end, 1.5);
}

TEST(PairedRatios, PairsWithoutAPartnerAreLeftOut) {
  EXPECT_EQ(summarize_pairs({2, 4, 9}, {1, 2}).median, 2);
  EXPECT_EQ(summarize_pairs({2}, {}).median, 0);
  EXPECT_DOUBLE_EQ(geometric_mean({1, 4, 16}), 4);
  EXPECT_EQ(geometric_mean({}), 0);
}

TEST(PairedRatios, AGainInsideTheNoiseIsNotClear) {
  EXPECT_TRUE(summarize_ratios({1.05, 1.06, 1.04, 1.05}).clearly_above(1.03));
  EXPECT_FALSE(summarize_ratios({1.05, 1.06, 1.04, 1.05}).clearly_above(1.06));
  EXPECT_FALSE(summarize_ratios({1.3, 1.2, 0.8, 0.7, 1.25, 0.9}).clearly_above(1.03));
}

}  // namespace
}  // namespace sluice::nvme
