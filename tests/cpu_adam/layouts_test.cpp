// Split masters are fp32 masters in another layout; bf16 moments are fp32 moments, rounded without
// bias.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "adam_state.hpp"
#include "rounding.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using test::bits_of;
using test::Layout;
using test::Sizes;

constexpr Layout kSplit{MasterLayout::split, DType::fp32};
constexpr Layout kRounded{MasterLayout::fp32, DType::bf16};

TEST(SplitMaster, IsExactlyTheValueAndItsNearestBf16) {
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFU; bits += bits % 3 == 0 ? 1 : 4093) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    const SplitValue halves = split(value);
    ASSERT_EQ(bits_of(join(halves)), bits_of(value)) << std::hex << bits;
    // Rounded to nearest, ties away from zero.
    const bool tie = (bits & 0xFFFFU) == 0x8000U;
    const auto up = static_cast<std::uint16_t>((bits >> 16U) + 1);
    ASSERT_EQ(halves.weight.bits, tie ? up : to_bf16(value).bits) << std::hex << bits;
  }
  // NaN with any payload: some payloads would carry into the weight and make it a number.
  for (const std::uint32_t bits : {0x7FC00000U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U}) {
    const SplitValue nan = split(std::bit_cast<float>(bits));
    EXPECT_EQ(nan.weight.bits, 0x7FC0U) << std::hex << bits;
    EXPECT_EQ(bits_of(join(nan)), 0x7FC00000U) << std::hex << bits;
  }
}

TEST(SplitMaster, EqualsTheFp32MasterBitForBit) {
  for (const OptimizerConfig& config : test::every_optimizer()) {
    AdamState whole(10'007);
    whole.fill(11);
    AdamState halves = whole;
    for (int t = 1; t <= 20; ++t) {
      const Step how{.step = t, .gradient_factor = 0.7F};
      const auto tile_of = [&](AdamState& state, const Layout& layout) {
        return state.tile(config, layout, DType::bf16, WeightType::bf16, 0, state.count());
      };
      step_tile(config, how, tile_of(whole, {}));
      step_tile(config, how, tile_of(halves, kSplit));
    }
    for (std::size_t i = 0; i < whole.count(); ++i) {
      const SplitValue value{halves.high.span()[i], halves.low.span()[i]};
      ASSERT_EQ(bits_of(join(value)), bits_of(whole.p.span()[i])) << config.index();
    }
    EXPECT_TRUE(halves.m.same_bits(whole.m));
    EXPECT_TRUE(halves.v.same_bits(whole.v));
    EXPECT_TRUE(halves.most.same_bits(whole.most));
  }
}

TEST(StochasticRounding, KeepsWhatBf16HoldsAndWhatIsNotFinite) {
  for (const std::uint32_t noise : {0U, 1U, 0x7FFFU, 0xFFFFU}) {
    for (const std::uint32_t upper : {0U, 0x8000U, 0x3F80U, 0xBF80U, 1U, 0x7F80U, 0xFF80U, 0x7FC0U})
      EXPECT_EQ(round_stochastically(std::bit_cast<float>(upper << 16U), noise).bits, upper);
  }
}

// All elements have an equal moment: beta1 = 0 makes m the gradient. The share of n elements that
// is rounded up is binomial, with a standard deviation of at most 0.5 / sqrt(n).
TEST(StochasticRounding, RoundsUpWithTheProbabilityOfWhatIsCutOff) {
  constexpr std::size_t kCount = 400'000;
  const AdamConfig config{.beta1 = 0};
  for (const std::uint32_t tail : {0x0001U, 0x0100U, 0x4000U, 0x8000U, 0xC000U, 0xFF00U}) {
    AdamState state(kCount);
    const auto value = std::bit_cast<float>(0x3F800000U | tail);
    for (std::size_t i = 0; i < kCount; ++i) state.set(i, 1, 0, 0, value);
    step_tile(config, Step{.seed = 3},
              state.tile(config, kRounded, DType::fp32, WeightType::none, 0, kCount));
    double up = 0;
    for (const Bf16 m : state.m16[0].span()) {
      ASSERT_TRUE(m.bits == 0x3F80U || m.bits == 0x3F81U) << std::hex << m.bits;
      up += m.bits == 0x3F81U ? 1 : 0;
    }
    const double expected = tail / 65536.0;
    const double deviation = std::sqrt(expected * (1 - expected) / kCount);
    EXPECT_NEAR(up / kCount, expected, 5 * deviation) << std::hex << tail;
  }
}

// Without gradients, v falls from 1 to 0.999^1000 = 0.3677. Rounding to nearest would leave v at 1,
// because 0.001 is less than half a unit in the last place of bf16. Each step's error has a
// standard deviation of at most 2^-8 of v, and decays by 0.999 a step: in the end at most 2^-8 /
// sqrt(1 - 0.999^2) = 8.8 % of the largest v, which is 1. The mean of n elements has 1 / sqrt(n) of
// that deviation.
TEST(StochasticRounding, SlowDecayIsNotLost) {
  constexpr std::size_t kCount = 20'000;
  const AdamConfig config{.learning_rate = 0};
  AdamState state(kCount);
  for (std::size_t i = 0; i < kCount; ++i) state.set(i, 1, 0, 1, 0);
  for (int t = 1; t <= 1000; ++t) {
    step_tile(config, Step{.step = t, .seed = 8},
              state.tile(config, kRounded, DType::fp32, WeightType::none, 0, kCount));
  }
  double mean = 0, square = 0;
  for (const Bf16 v : state.m16[1].span()) {
    mean += to_fp32(v) / kCount;
    square += static_cast<double>(to_fp32(v)) * to_fp32(v) / kCount;
  }
  const double expected = std::pow(0.999, 1000);
  const double deviation = std::sqrt(square - mean * mean);
  EXPECT_NEAR(mean, expected, 5 * 0.088 / std::sqrt(double{kCount}));
  EXPECT_LT(deviation, 0.088);
  EXPECT_GT(deviation, 0.001) << "elements have noise of their own";
}

// Every optimizer's bf16 moments stay near the fp32 moments over 1,000 steps. A moment that decays
// by `beta` a step has an error with a standard deviation of at most 2^-8 / sqrt(1 - beta^2) of its
// largest value so far (above). Adagrad's sum does not decay, and its error per step is largest at
// the end: 2^-8 sqrt(1000) = 12 %. Within six deviations lie all of 2,000 elements.
class MomentsInBothFormats : public ::testing::TestWithParam<OptimizerConfig> {
 protected:
  static constexpr std::size_t kCount = 2'000;
  // One step in fp32 and one in bf16, with the same gradients.
  void take_step(int t) {
    for (std::size_t i = 0; i < kCount; ++i)
      state_.set_gradient(i, size_(random_) * (random_() % 2 == 0 ? 1.0F : -1.0F));
    for (const Layout& layout : {Layout{}, kRounded}) {
      step_tile(GetParam(), Step{.step = t, .gradient_factor = 0.01F, .seed = 1},
                state_.tile(GetParam(), layout, DType::fp32, WeightType::none, 0, kCount));
    }
    for (std::size_t k = 0; k < moment_count(GetParam()); ++k)
      largest_[k] = std::max(largest_[k], largest_of(moment(k)));
  }
  std::span<const float> moment(std::size_t k) {
    const test::Guarded<float>* moments[] = {&state_.m, &state_.v, &state_.most};
    return moments[k]->span();
  }
  static double largest_of(std::span<const float> values) {
    double largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(double{value}));
    return largest;
  }

  AdamState state_{kCount};
  std::mt19937 random_{3};
  std::uniform_real_distribution<float> size_{0.5F, 1.5F};
  double largest_[kMostMoments] = {};
};

TEST_P(MomentsInBothFormats, StayNearEachOther) {
  for (std::size_t i = 0; i < kCount; ++i) state_.set(i, 0.5F, 0, 0, 0);
  for (int t = 1; t <= 1000; ++t) take_step(t);
  const double betas[] = {0.99, 0.999, 0.999};
  const bool sums = std::holds_alternative<AdagradConfig>(GetParam());
  for (std::size_t k = 0; k < moment_count(GetParam()); ++k) {
    const double lasting = sums ? std::sqrt(1000.0) : 1 / std::sqrt(1 - betas[k] * betas[k]);
    const double limit = 6 * 0x1p-8 * lasting * largest_[k];
    for (std::size_t i = 0; i < kCount; ++i)
      EXPECT_NEAR(to_fp32(state_.m16[k].span()[i]), moment(k)[i], limit) << "moment " << k + 1;
  }
}
INSTANTIATE_TEST_SUITE_P(StochasticRounding, MomentsInBothFormats,
                         ::testing::ValuesIn(test::every_optimizer()));

// Neighbours, the moments of one element, and consecutive steps have independent noise: the mean of
// n products of independent signs has a standard deviation of 1 / sqrt(n).
TEST(StochasticRounding, NoiseIsNotCorrelated) {
  constexpr std::uint32_t kCount = 1U << 18U;
  const double limit = 5 / std::sqrt(double{kCount});
  const RoundingKey now = rounding_key(Step{.step = 7, .seed = 1}, 0);
  const RoundingKey next = rounding_key(Step{.step = 8, .seed = 1}, 0);
  const RoundingKey other = rounding_key(Step{.step = 7, .seed = 2}, 0);
  const RoundingKey far = rounding_key(Step{.step = 7, .seed = 1}, std::uint64_t{1} << 32U);
  const auto sign = [](std::uint32_t noise, std::size_t moment, unsigned bit) {
    return ((noise_of_moment(noise, moment) >> bit) & 1U) != 0 ? 1.0 : -1.0;
  };
  for (const unsigned bit : {0U, 7U, 15U}) {
    double mean = 0, neighbour = 0, moment = 0, step = 0, seed = 0, half = 0;
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const double a = sign(noise_of(now, i), 0, bit);
      mean += a;
      neighbour += a * sign(noise_of(now, i + 1), 0, bit);
      moment += a * sign(noise_of(now, i), 1, bit);
      step += a * sign(noise_of(next, i), 0, bit);
      seed += a * sign(noise_of(other, i), 0, bit);
      half += a * sign(noise_of(far, i), 0, bit);
    }
    for (const double sum : {mean, neighbour, moment, step, seed, half})
      EXPECT_LT(std::abs(sum) / kCount, limit) << "bit " << bit;
  }
}

TEST(StochasticRounding, IsTheSameForAnySplitIntoTiles) {
  constexpr std::size_t kCount = 5'000;
  const AdamConfig config{.amsgrad = true};
  const Layout layout{MasterLayout::split, DType::bf16};
  AdamState start(kCount);
  start.fill(2);
  AdamState whole = start;
  const Step how{.step = 4, .seed = 9};
  step_tile(config, how, whole.tile(config, layout, DType::bf16, WeightType::none, 0, kCount));
  for (const std::size_t length : Sizes{1, 17, 999, 4'999}) {
    AdamState state = start;
    for (std::size_t first = 0; first < kCount; first += length) {
      step_tile(config, how,
                state.tile(config, layout, DType::bf16, WeightType::none, first,
                           std::min(length, kCount - first)));
    }
    EXPECT_TRUE(state.same_bits(whole)) << "tiles of " << length;
  }
}

// The elements' numbers pass 2^32 in the middle of the tile.
TEST(StochasticRounding, GoesOnBeyondFourBillionElements) {
  constexpr std::size_t kCount = 1'000;
  const AdamConfig config;
  AdamState start(kCount);
  start.fill(3);
  AdamState whole = start, parts = start;
  const auto run = [&](AdamState& state, std::size_t first, std::size_t count) {
    Tile tile = state.tile(config, kRounded, DType::fp32, WeightType::none, first, count);
    tile.first_element = (std::uint64_t{1} << 32U) - 500 + first;
    step_tile(config, {}, tile);
  };
  run(whole, 0, kCount);
  run(parts, 0, 500);
  run(parts, 500, 500);
  EXPECT_TRUE(parts.same_bits(whole));
  AdamState low = start;
  step_tile(config, {}, low.tile(config, kRounded, DType::fp32, WeightType::none, 0, kCount));
  EXPECT_FALSE(low.m16[0].same_bits(whole.m16[0])) << "other elements, other noise";
}

TEST(StochasticRounding, DependsOnSeedAndStep) {
  const AdamConfig config;
  AdamState a(1'000);
  a.fill(4);
  AdamState b = a, c = a;
  const auto tile_of = [&](AdamState& state) {
    return state.tile(config, kRounded, DType::fp32, WeightType::none, 0, state.count());
  };
  step_tile(config, Step{.seed = 1}, tile_of(a));
  step_tile(config, Step{.seed = 2}, tile_of(b));
  step_tile(config, Step{.seed = 1}, tile_of(c));
  EXPECT_TRUE(a.same_bits(c));
  EXPECT_FALSE(a.m16[0].same_bits(b.m16[0]));
  EXPECT_TRUE(a.p.same_bits(b.p)) << "the master of this step sees moments before their rounding";
}

}  // namespace
}  // namespace sluice::cpu_adam
