#include "sluice/nvme/latency.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "nvme_test_support.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "temp_dir.hpp"

namespace sluice::nvme {
namespace {

using std::chrono::nanoseconds;

TEST(LatencyHistogram, IsEmptyAtFirst) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0U);
  EXPECT_EQ(histogram.quantile(0.5), nanoseconds(0));
}

TEST(LatencyHistogram, QuantilesAreThoseOfTheValuesUpToABucket) {
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> latencies(11, 2);  // around 60 microseconds, a long tail
  LatencyHistogram histogram;
  std::vector<std::int64_t> values;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(static_cast<std::int64_t>(latencies(random)));
    histogram.record(nanoseconds(values.back()));
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto exact =
        static_cast<double>(values[static_cast<std::size_t>(std::ceil(share * 20000.0)) - 1]);
    const auto found = static_cast<double>(histogram.quantile(share).count());
    EXPECT_GE(found, exact) << share;
    EXPECT_LE(found, 1.125 * exact + 1) << share;  // buckets are an eighth of an octave's beginning
  }
}

TEST(LatencyHistogram, SmallAndHugeValuesHaveTheirBuckets) {
  for (const std::int64_t value : {0L, 1L, 7L, 8L, 15L, 16L, 1000L, (1L << 62U), INT64_MAX}) {
    LatencyHistogram histogram;
    histogram.record(nanoseconds(value));
    EXPECT_GE(histogram.quantile(1).count(), value);
    EXPECT_LE(static_cast<double>(histogram.quantile(1).count()),
              1.125 * static_cast<double>(value));
  }
}

TEST(LatencyHistogram, DifferencesAndSumsCount) {
  LatencyHistogram histogram;
  histogram.record(nanoseconds(100));
  const LatencyHistogram before = histogram;
  histogram.record(nanoseconds(5000));
  histogram.record(nanoseconds(5000));
  LatencyHistogram later = histogram.since(before);
  EXPECT_EQ(later.count(), 2U);
  EXPECT_GE(later.quantile(0.01).count(), 5000);
  later.add(before);
  EXPECT_EQ(later.count(), 3U);
}

TEST(IoEngineLatency, CountsEveryRequestByDirection) {
  const test::TempDir dir;
  IoEngine engine(make_backend(BackendKind::automatic, 4, 2).backend, {16384, 4});
  SwapFile file(dir.file("f"), OpenMode::create, DirectIo::automatic);
  TestBuffer buffer(std::size_t{10} * 16384);
  engine.begin_write(file, 0, buffer.bytes()).finish();
  engine.begin_read(file, 0, buffer.bytes().first(std::size_t{3} * 16384)).finish();
  const IoLatency latency = engine.latency();
  EXPECT_EQ(latency.writes.count(), 10U);
  EXPECT_EQ(latency.reads.count(), 3U);
  EXPECT_GT(latency.reads.quantile(0.5), nanoseconds(0));
}

}  // namespace
}  // namespace sluice::nvme
