#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "adam_reference.hpp"
#include "adam_state.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamReference;
using test::AdamState;
using test::bits_of;
using test::Sizes;

// Several chunks of 65,536 and a rest.
constexpr std::size_t kManyChunks = 3 * 65'536 + 1'001;

TEST(Step, GivesTheSameBitsOnAnyNumberOfThreads) {
  const AdamConfig config{.weight_decay = 0.1};
  AdamState start(kManyChunks);
  start.fill(1);
  for (const WeightType weight : {WeightType::none, WeightType::fp32, WeightType::bf16}) {
    AdamState whole = start;
    for (int t = 1; t <= 3; ++t)
      step_tile(config, Step{.step = t}, whole.tile(DType::bf16, weight));
    for (const int threads : {1, 2, 3, 7}) {
      for (const ExecutorKind kind : {ExecutorKind::automatic, ExecutorKind::plain_threads}) {
        const auto executor = make_executor(threads, kind);
        AdamState state = start;
        for (int t = 1; t <= 3; ++t) {
          step(config, Step{.step = t}, state.tile(DType::bf16, weight), *executor);
        }
        EXPECT_TRUE(state.same_bits(whole)) << threads << " threads, " << executor->name();
      }
    }
  }
}

TEST(Step, GivesTheSameBitsForAnySplitIntoTiles) {
  constexpr std::size_t kCount = 5'000;
  AdamState start(kCount);
  start.fill(2);
  AdamState whole = start;
  step_tile({}, {}, whole.tile(DType::fp16, WeightType::fp16));
  for (const std::size_t tile_count : Sizes{1, 3, 16, 17, 100, 999, 4'999}) {
    AdamState state = start;
    for (std::size_t first = 0; first < kCount; first += tile_count) {
      const std::size_t length = std::min(tile_count, kCount - first);
      step_tile({}, {}, state.tile(DType::fp16, WeightType::fp16, first, length));
    }
    EXPECT_TRUE(state.same_bits(whole)) << "tiles of " << tile_count;
  }
}

TEST(Step, GivesTheSameBitsInPartsOfALargeStep) {
  AdamState start(kManyChunks);
  start.fill(3);
  for (const WeightType weight : {WeightType::none, WeightType::fp32, WeightType::bf16}) {
    AdamState whole = start;
    step_tile({}, {}, whole.tile(DType::bf16, weight));
    for (const std::size_t step_elements : Sizes{1, 50'000'000}) {  // the large one streams
      AdamState state = start;
      for (std::size_t first = 0; first < kManyChunks; first += 9'999) {
        const std::size_t length = std::min<std::size_t>(9'999, kManyChunks - first);
        EXPECT_TRUE(
            step_part({}, {}, state.tile(DType::bf16, weight, first, length), step_elements));
      }
      EXPECT_TRUE(state.same_bits(whole)) << step_elements;
    }
  }
}

struct ReferenceCase {
  const char* name;
  AdamConfig config;
  float gradient_factor;
};

class AgainstDouble : public ::testing::TestWithParam<ReferenceCase> {};

// 1,000 steps of noisy gradients: tiny in some elements, where epsilon matters, large in others.
TEST_P(AgainstDouble, StaysWithinTheRoundingBoundFor1000Steps) {
  constexpr std::size_t kCount = 203;
  const ReferenceCase& c = GetParam();
  std::mt19937 random(42);
  std::normal_distribution<float> normal;
  AdamState state(kCount);
  std::vector<AdamReference> reference(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    state.p.span()[i] = normal(random);
    reference[i].p = state.p.span()[i];
  }
  for (int t = 1; t <= 1000; ++t) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const float scale = std::pow(10.0F, static_cast<float>(i % 7) - 5);
      state.set_gradient(i, scale * (normal(random) + 0.5F));
      reference[i].step(c.config, t, to_fp32(state.gbf.span()[i]), c.gradient_factor);
    }
    step_tile(c.config, Step{.step = t, .gradient_factor = c.gradient_factor},
              state.tile(DType::bf16, WeightType::none));
  }
  double widest = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const AdamReference& r = reference[i];
    EXPECT_NEAR(state.p.span()[i], r.p, AdamReference::margin(r.p_bound)) << i;
    EXPECT_NEAR(state.m.span()[i], r.m, AdamReference::margin(r.m_bound)) << i;
    EXPECT_NEAR(state.v.span()[i], r.v, AdamReference::margin(r.v_bound)) << i;
    widest = std::max(widest, r.p_bound);
  }
  // The bound detects a wrong formula: a step moves an element by about the learning rate.
  EXPECT_LT(widest, c.config.learning_rate);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, AgainstDouble,
    ::testing::Values(
        ReferenceCase{"Adam", {}, 1},
        // As large as the smallest gradients. A much larger decay feeds the master's error back
        // through the gradient until the bound is useless.
        ReferenceCase{"AdamL2", {.weight_decay = 1e-5, .decay = WeightDecay::l2}, 1},
        ReferenceCase{"AdamW", {.weight_decay = 0.1}, 1},
        ReferenceCase{
            "AdamWWithoutBiasCorrection", {.weight_decay = 0.1, .bias_correction = false}, 1},
        ReferenceCase{"OtherConstants",
                      {.learning_rate = 3e-3, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5},
                      1},
        ReferenceCase{"UnscaledAndClipped", {.weight_decay = 0.1}, 0.013F}),
    [](const auto& param) { return param.param.name; });

TEST(Step, L2AndDecoupledDecayDiffer) {
  AdamState l2(100), decoupled(100);
  l2.fill(3);
  decoupled.fill(3);
  step_tile(AdamConfig{.weight_decay = 0.1, .decay = WeightDecay::l2}, {}, l2.tile());
  step_tile(AdamConfig{.weight_decay = 0.1, .decay = WeightDecay::decoupled}, {}, decoupled.tile());
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_NE(bits_of(l2.p.span()[i]), bits_of(decoupled.p.span()[i]));
    EXPECT_NE(bits_of(l2.m.span()[i]), bits_of(decoupled.m.span()[i]));
  }
}

TEST(Step, WithoutWeightDecayBothKindsGiveTheSameBits) {
  AdamState l2(100), decoupled(100);
  l2.fill(3);
  decoupled.fill(3);
  step_tile(AdamConfig{.decay = WeightDecay::l2}, {}, l2.tile());
  step_tile(AdamConfig{.decay = WeightDecay::decoupled}, {}, decoupled.tile());
  EXPECT_TRUE(l2.same_bits(decoupled));
}

TEST(Step, DecoupledDecayShrinksAMasterWithoutGradient) {
  AdamState state(20);
  for (float& p : state.p.span()) p = 2.0F;
  step_tile(AdamConfig{.learning_rate = 0.5, .weight_decay = 0.5}, {}, state.tile());
  for (const float p : state.p.span()) EXPECT_EQ(p, 1.5F);  // 2 * (1 - 0.5 * 0.5), all exact
}

TEST(Step, TheFactorMultipliesTheGradient) {
  AdamState scaled(100), plain(100);
  scaled.fill(4);
  plain.fill(4);
  for (float& g : plain.g32.span()) g *= 0.3F;
  step_tile({}, Step{.gradient_factor = 0.3F}, scaled.tile());
  step_tile({}, {}, plain.tile());
  EXPECT_TRUE(scaled.p.same_bits(plain.p));
  EXPECT_TRUE(scaled.m.same_bits(plain.m));
  EXPECT_TRUE(scaled.v.same_bits(plain.v));
}

TEST(Step, TheFirstStepMovesByTheLearningRate) {
  AdamState state(1);
  state.set(0, 1.0F, 0, 0, 0.25F);
  step_tile(AdamConfig{.learning_rate = 0.125, .epsilon = 0}, {}, state.tile());
  EXPECT_NEAR(state.p.span()[0], 0.875, 4 * 0x1p-24);  // m / sqrt(v) is 1 up to its rounding
}

TEST(Step, TheWeightIsTheMasterRounded) {
  AdamState state(10'001);
  state.fill(5);
  AdamState again = state;
  step_tile({}, {}, state.tile(DType::bf16, WeightType::bf16));
  step_tile({}, {}, again.tile(DType::bf16, WeightType::fp16));
  EXPECT_TRUE(state.p.same_bits(again.p));
  for (std::size_t i = 0; i < state.count(); ++i) {
    EXPECT_EQ(state.wbf.span()[i].bits, to_bf16(state.p.span()[i]).bits);
    EXPECT_EQ(again.wfp.span()[i].bits, to_fp16(state.p.span()[i]).bits);
  }
}

TEST(Step, EpsilonZeroMakesAnElementThatNeverHadAGradientNan) {
  AdamState state(3);
  state.set(0, 1.0F, 0, 0, 0);
  state.set(1, 1.0F, 0, 0, 1.0F);
  step_tile(AdamConfig{.epsilon = 0}, {}, state.tile());
  EXPECT_EQ(bits_of(state.p.span()[0]), 0x7FC00000U);
  EXPECT_TRUE(std::isfinite(state.p.span()[1]));
}

TEST(Step, AVeryLateStepHasNoBiasCorrectionLeft) {
  AdamState late(50), without(50);
  late.fill(6);
  without.fill(6);
  step_tile({}, Step{.step = std::int64_t{1} << 40}, late.tile());
  step_tile(AdamConfig{.bias_correction = false}, Step{.step = 1}, without.tile());
  EXPECT_TRUE(late.same_bits(without));
}

}  // namespace
}  // namespace sluice::cpu_adam
