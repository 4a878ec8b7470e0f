// Every kernel tells whether what it wrote is finite, as the memory itself shows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "adam_state.hpp"
#include "kernel_test.hpp"
#include "kernels.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using test::kGradientTypes;
using test::kWeightTypes;
using test::Layout;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
bool is_finite(T value) {
  if constexpr (std::is_same_v<T, float>) return std::isfinite(value);
  if constexpr (!std::is_same_v<T, float>) return std::isfinite(to_fp32(value));
}

// The first element of the tile with a non-finite value in memory, looking at the first `moments`
// moments; the length if there is none.
std::size_t first_bad(const Tile& tile, std::size_t count, std::size_t moments) {
  std::size_t first = count;
  const auto search = [&](const auto& values) {
    for (std::size_t i = 0; i < first && i < values.size(); ++i) {
      if (!is_finite(values[i])) first = i;
    }
  };
  if (const auto* split = std::get_if<SplitMaster>(&tile.master)) {
    search(split->weight);
    for (std::size_t i = 0; i < first; ++i) {
      if (!std::isfinite(join({split->weight[i], split->low[i]}))) first = i;
    }
  } else {
    search(std::get<std::span<float>>(tile.master));
  }
  for (std::size_t k = 0; k < moments; ++k) std::visit(search, tile.moments[k]);
  std::visit(
      [&]<class W>(const W& weight) {
        if constexpr (!std::is_same_v<W, std::monostate>) search(weight);
      },
      tile.weight);
  return first;
}

// No moment is negative: Adagrad's is a sum of squares.
AdamState healthy(std::size_t count) {
  AdamState state(count);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = normal(random);
    state.set(i, normal(random), 0.1F * g * g, 0.01F * g * g + 1e-12F, g);
  }
  return state;
}

class FiniteCheckOf : public test::KernelTest {
 protected:
  // Steps a copy. The kernel's verdict and the place it finds must be those of the memory.
  bool step(const AdamState& before, const OptimizerConfig& config, const Layout& layout,
            DType gradient, WeightType weight) {
    AdamState state = before;
    const Tile tile = state.tile(config, layout, gradient, weight, 0, state.count());
    const bool finite = step_tile_on(*kernel_, config, {.step = 2, .seed = 5}, tile);
    const std::size_t moments = moment_count(config);
    const std::size_t bad = first_bad(tile, state.count(), moments);
    // A further moment that is non-finite alone need not be noticed.
    const bool noticed =
        first_bad(tile, state.count(), std::min<std::size_t>(moments, 1)) < state.count();
    EXPECT_TRUE(finite ? !noticed : bad < state.count())
        << state.count() << " elements, optimizer " << config.index() << ", " << name_of(layout)
        << ", gradient " << name_of(gradient) << ", weight type " << static_cast<int>(weight)
        << ", the first bad one is " << bad;
    EXPECT_EQ(first_non_finite(config, tile), bad);
    return finite;
  }
  template <class Body>
  static void for_all(const Body& body) {
    for (const OptimizerConfig& config : test::every_optimizer()) {
      for (const Layout& layout : test::kLayouts) {
        for (const DType gradient : kGradientTypes) {
          for (const WeightType weight : kWeightTypes) body(config, layout, gradient, weight);
        }
      }
    }
  }
};

TEST_P(FiniteCheckOf, SeesOneElementAnywhere) {
  for (const std::size_t count : {1U, 16U, 48U, 67U, 211U}) {
    const AdamState good = healthy(count);
    for_all([&](const auto& config, const Layout& layout, DType gradient, WeightType weight) {
      EXPECT_TRUE(step(good, config, layout, gradient, weight));
      for (const std::size_t at : {std::size_t{0}, count / 3, count - 1}) {
        AdamState bad = good;
        bad.set_gradient(at, kNan);
        EXPECT_FALSE(step(bad, config, layout, gradient, weight));
        bad.set_gradient(at, -kInf);
        EXPECT_FALSE(step(bad, config, layout, gradient, weight));
      }
    });
  }
}

// Values at the ends of all types, one element at a time, so that each has its own verdict.
TEST_P(FiniteCheckOf, AgreesWithTheMemoryForSpecialValues) {
  const float specials[] = {0.0F, 1.0F, -65519.0F, 65520.0F, 2e19F, 1e38F, -1e38F, kInf, kNan};
  std::mt19937 random(11);
  const auto any = [&] { return specials[random() % std::size(specials)]; };
  std::size_t finite = 0, other = 0;
  for (int round = 0; round < 200; ++round) {
    AdamState state(1);
    state.set(0, any(), any(), any(), any());
    for_all([&](const auto& config, const Layout& layout, DType gradient, WeightType weight) {
      ++(step(state, config, layout, gradient, weight) ? finite : other);
    });
  }
  EXPECT_GT(finite, 1000U);
  EXPECT_GT(other, 1000U);
}

// Finite inputs, non-finite results.
TEST_P(FiniteCheckOf, SeesADivisionByZeroOnlyWhereAnElementHasIt) {
  const AdamConfig zero{.epsilon = 0};
  AdamState state = healthy(67);
  for (const Layout& layout : test::kLayouts)
    EXPECT_TRUE(step(state, zero, layout, DType::bf16, WeightType::bf16)) << name_of(layout);
  state.set(66, 1, 0, 0, 0);
  for (const Layout& layout : test::kLayouts)
    EXPECT_FALSE(step(state, zero, layout, DType::bf16, WeightType::bf16)) << name_of(layout);
}

TEST_P(FiniteCheckOf, SeesAWeightInFp16ThatOverflowsWhileTheMasterIsFinite) {
  const AdamConfig still{.learning_rate = 0};
  for (const std::size_t count : {40U, 67U}) {
    AdamState state = healthy(count);
    const std::size_t at = count - 20;
    state.set(at, 65519, 0, 1, 0);
    EXPECT_TRUE(step(state, still, {}, DType::fp32, WeightType::fp16));
    state.set(at, -65520, 0, 1, 0);
    EXPECT_FALSE(step(state, still, {}, DType::fp32, WeightType::fp16));
    EXPECT_TRUE(step(state, still, {}, DType::fp32, WeightType::bf16));
  }
}

TEST_P(FiniteCheckOf, SeesAMasterThatOverflowsInfiniteAndNotNaN) {
  const AdamConfig fast{.learning_rate = 3e38, .bias_correction = false};
  for (const Layout& layout : test::kLayouts) {
    AdamState state = healthy(67);
    EXPECT_TRUE(step(state, AdamConfig{.learning_rate = 0}, layout, DType::bf16, WeightType::bf16));
    state.set(33, -3e38F, 1, 1e-3F, 1);
    EXPECT_FALSE(step(state, fast, layout, DType::bf16, WeightType::bf16));
  }
}

// Streamed weights, several chunks, several threads.
TEST_P(FiniteCheckOf, SeesOneElementOfALargeStep) {
  constexpr std::size_t kLarge = 1'048'576 + 37;
  AdamState state = healthy(kLarge);
  const AdamConfig config;
  const Tile tile = state.tile(DType::bf16, WeightType::bf16);
  const Group group{config, {&tile, 1}};
  const auto executor = make_executor(2);
  EXPECT_TRUE(step_on(*kernel_, {&group, 1}, {}, *executor));
  for (const std::size_t at : {std::size_t{0}, kLarge / 2, kLarge - 1}) {
    state.set(at, 1, 0, 0, kNan);
    EXPECT_FALSE(step_on(*kernel_, {&group, 1}, {}, *executor));
    EXPECT_EQ(first_non_finite(config, tile), at);
    state.set(at, 1, 0, 1, 0);
    EXPECT_TRUE(step_on(*kernel_, {&group, 1}, {}, *executor));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FiniteCheckOf, ::testing::ValuesIn(kernel_names()),
                         [](const auto& kernel) { return kernel.param; });

}  // namespace
}  // namespace sluice::cpu_adam
