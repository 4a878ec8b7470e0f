#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "adam_state.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using test::kGradientTypes;

std::uint64_t bits_of(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

double element(const AdamState& state, DType type, std::size_t i) {
  if (type == DType::bf16) return to_fp32(state.gbf.span()[i]);
  if (type == DType::fp16) return to_fp32(state.gfp.span()[i]);
  return state.g32.span()[i];
}

TEST(GradientStats, OfNothingIsZero) {
  const auto executor = make_executor(2);
  const GradientStats stats = gradient_stats(std::span<const float>(), *executor);
  EXPECT_EQ(stats.squared_norm, 0);
  EXPECT_TRUE(stats.finite);
}

// All terms are at least 0, so n additions in any order lie within (n - 1) * 2^-53 of the exact
// sum, relative; both sides: 2 * n * 2^-53.
TEST(GradientStats, IsTheSumOfSquares) {
  constexpr std::size_t kCount = 100'003;
  AdamState state(kCount);
  state.fill(1);
  const auto executor = make_executor(2);
  for (const DType type : kGradientTypes) {
    double expected = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      expected += element(state, type, i) * element(state, type, i);
    }
    const GradientStats stats = gradient_stats(state.gradient(type, 0, kCount), *executor);
    EXPECT_NEAR(stats.squared_norm, expected, expected * 2 * kCount * 0x1p-53) << name_of(type);
    EXPECT_TRUE(stats.finite);
  }
}

TEST(GradientStats, OfSeveralIsTheSumInTheirOrder) {
  AdamState state(200'000);
  state.fill(5);
  const auto executor = make_executor(2);
  for (const DType type : kGradientTypes) {
    const std::size_t counts[] = {0, 1, 16'384, 0, 100'003, 17, 40'000, 0};
    std::vector<GradientSpan> gradients;
    double expected = 0;
    std::size_t first = 0;
    for (const std::size_t count : counts) {
      gradients.push_back(state.gradient(type, first, count));
      expected += gradient_stats(gradients.back(), *executor).squared_norm;
      first += count;
    }
    const GradientStats stats = gradient_stats(gradients, *executor);
    EXPECT_EQ(bits_of(stats.squared_norm), bits_of(expected)) << name_of(type);
    EXPECT_TRUE(stats.finite);
  }
  state.set_gradient(150'000, std::numeric_limits<float>::infinity());
  const GradientSpan two[] = {state.gradient(DType::fp32, 0, 10),
                              state.gradient(DType::fp32, 149'000, 2'000)};
  EXPECT_FALSE(gradient_stats(two, *executor).finite);
}

// Small integers: every partial sum is exact, so the value is known to the last bit.
TEST(GradientStats, IsExactWhereTheSumsAre) {
  AdamState state(70'000);
  double expected = 0;
  for (std::size_t i = 0; i < state.count(); ++i) {
    const auto value = static_cast<float>(i % 17) - 8;
    state.set_gradient(i, value);
    expected += static_cast<double>(value) * value;
  }
  const auto executor = make_executor(1);
  for (const DType type : kGradientTypes) {
    EXPECT_EQ(gradient_stats(state.gradient(type, 0, state.count()), *executor).squared_norm,
              expected);
  }
}

TEST(GradientStats, DoesNotDependOnThreads) {
  constexpr std::size_t kCount = 40 * 16'384 + 11;
  AdamState state(kCount);
  state.fill(2);
  for (const DType type : kGradientTypes) {
    const GradientSpan gradient = state.gradient(type, 0, kCount);
    const auto one = make_executor(1);
    const double expected = gradient_stats(gradient, *one).squared_norm;
    for (const int threads : {2, 3, 7}) {
      for (const ExecutorKind kind : {ExecutorKind::automatic, ExecutorKind::plain_threads}) {
        const auto executor = make_executor(threads, kind);
        EXPECT_EQ(bits_of(gradient_stats(gradient, *executor).squared_norm), bits_of(expected));
      }
    }
  }
}

TEST(GradientStats, SumsChunksOf16384InOrder) {
  constexpr std::size_t kChunk = 16'384;
  constexpr std::size_t kCount = 5 * kChunk + 100;
  AdamState state(kCount);
  state.fill(3);
  const auto executor = make_executor(1);
  double expected = 0;
  for (std::size_t first = 0; first < kCount; first += kChunk) {
    const std::size_t length = std::min(kChunk, kCount - first);
    expected += gradient_stats(state.gradient(DType::bf16, first, length), *executor).squared_norm;
  }
  const GradientStats whole = gradient_stats(state.gradient(DType::bf16, 0, kCount), *executor);
  EXPECT_EQ(bits_of(whole.squared_norm), bits_of(expected));
}

TEST(GradientStats, TheLargestFiniteElementsStayFinite) {
  const std::vector<float> largest(100'000, std::numeric_limits<float>::max());
  const auto executor = make_executor(2);
  const GradientStats stats = gradient_stats(std::span<const float>(largest), *executor);
  EXPECT_TRUE(stats.finite);
  EXPECT_TRUE(std::isfinite(stats.squared_norm));
}

TEST(GradientStats, SubnormalsCount) {
  const std::vector<float> smallest(3, std::numeric_limits<float>::denorm_min());
  const auto executor = make_executor(1);
  EXPECT_EQ(gradient_stats(std::span<const float>(smallest), *executor).squared_norm,
            3 * 0x1p-149 * 0x1p-149);
}

TEST(GradientStats, NanIsReportedAsTheSameNanEverywhere) {
  std::vector<float> values(20'000, 1.0F);
  values[5] = std::bit_cast<float>(0xFFC12345U);
  values[19'999] = std::bit_cast<float>(0x7FC00001U);
  const auto executor = make_executor(2);
  const GradientStats stats = gradient_stats(std::span<const float>(values), *executor);
  EXPECT_FALSE(stats.finite);
  EXPECT_EQ(bits_of(stats.squared_norm), bits_of(std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace
}  // namespace sluice::cpu_adam
