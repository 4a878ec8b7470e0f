// Every kernel gives the bits of the scalar one for every input.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "adam_state.hpp"
#include "kernel_test.hpp"
#include "kernels.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using test::bits_of;
using test::kGradientTypes;
using test::kWeightTypes;
using test::Layout;
using test::Sizes;

constexpr float kInf = std::numeric_limits<float>::infinity();

class EveryKernel : public test::KernelTest {
 protected:
  // Steps `state` and a copy on the scalar kernel, and compares all the memory.
  void expect_scalar_bits(AdamState& state, const OptimizerConfig& config, const Layout& layout,
                          DType gradient, WeightType weight) {
    AdamState expected = state;
    const Step step{.step = 3, .gradient_factor = 0.37F, .seed = 5};
    const auto tile_of = [&](AdamState& of) {
      return of.tile(config, layout, gradient, weight, 0, of.count());
    };
    step_tile_on(scalar_kernel(), config, step, tile_of(expected));
    step_tile_on(*kernel_, config, step, tile_of(state));
    EXPECT_TRUE(state.same_bits(expected))
        << state.count() << " elements, optimizer " << config.index() << ", " << name_of(layout)
        << ", gradient " << name_of(gradient) << ", weight type " << static_cast<int>(weight);
  }
  void expect_scalar_bits(AdamState& state, const OptimizerConfig& config, DType gradient,
                          WeightType weight) {
    expect_scalar_bits(state, config, {}, gradient, weight);
  }
};

TEST_P(EveryKernel, GivesTheScalarBitsForEveryTypeLengthAndAlignment) {
  for (const std::size_t count :
       Sizes{0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000, 4099}) {
    for (const std::size_t offset : Sizes{0, 1, 3}) {
      for (const DType gradient : kGradientTypes) {
        for (const WeightType weight : kWeightTypes) {
          for (const OptimizerConfig& config : test::every_optimizer()) {
            for (const Layout& layout : test::kLayouts) {
              AdamState state(count, offset);
              state.fill(static_cast<unsigned>(count));
              expect_scalar_bits(state, config, layout, gradient, weight);
            }
          }
        }
      }
    }
  }
}

TEST_P(EveryKernel, GivesTheScalarBitsForSpecialValues) {
  const AdamState start = test::special_states();
  for (const OptimizerConfig& config : test::every_optimizer()) {
    for (const Layout& layout : test::kLayouts) {
      for (const DType gradient : kGradientTypes) {
        AdamState state = start;
        expect_scalar_bits(state, config, layout, gradient, WeightType::bf16);
      }
    }
  }
  for (const WeightType weight : kWeightTypes) {
    AdamState state = start;
    expect_scalar_bits(state, AdamConfig{}, DType::fp32, weight);
  }
}

// A kernel may compute its own root. The numerator makes every quotient slightly less than a power
// of two, so that a change in the root's last place changes the quotient.
TEST_P(EveryKernel, TakesTheRootOfEveryMantissaAsTheScalarKernel) {
  if (kernel_->name == scalar_kernel().name)
    GTEST_SKIP() << "it is what the others are compared with";
  constexpr std::uint32_t kCount = 1U << 20U;
  constexpr std::uint32_t kOne = 0x3F800000;     // 1.0: every value up to 4.0,
  constexpr std::uint32_t kBinade = 0x00800000;  // and values at the ends of the exponents
  const AdamConfig config{
      .learning_rate = 1, .beta1 = 0.5, .beta2 = 0.5, .epsilon = 0, .bias_correction = false};
  const std::vector<float> gradient(kCount, 0.0F);
  // From element `skip` on: a kernel may treat one vector of several otherwise.
  const auto step_from = [&](const Kernel& kernel, std::uint32_t first, std::size_t skip) {
    std::vector<float> p(kCount, 0.0F), m(kCount), v(kCount);
    for (std::uint32_t i = 0; i < kCount; ++i) {
      const auto halved = std::bit_cast<float>(first + i);
      v[i] = 2 * halved;
      m[i] = 2 * 1.999F * std::sqrt(halved);
    }
    step_tile_on(kernel, config, {.step = 1},
                 {.master = std::span(p).subspan(skip),
                  .moments = {std::span(m).subspan(skip), std::span(v).subspan(skip)},
                  .gradient = std::span(gradient).subspan(skip)});
    return p;
  };
  std::vector<std::uint32_t> firsts;
  for (std::uint32_t first = kOne; first < kOne + 2 * kBinade; first += kCount)
    firsts.push_back(first);
  for (const std::uint32_t edge : {0U, kBinade, 0x0F800000U, 0x7E800000U})
    firsts.push_back(std::max(edge, kCount / 2) - kCount / 2);
  for (const std::uint32_t first : firsts) {
    const std::vector<float> expected = step_from(scalar_kernel(), first, 0);
    for (const std::size_t skip : Sizes{0, 16}) {
      const std::vector<float> found = step_from(*kernel_, first, skip);
      for (std::size_t i = skip; i < kCount; ++i)
        ASSERT_EQ(bits_of(found[i]), bits_of(expected[i]))
            << "root of " << std::hexfloat
            << std::bit_cast<float>(first + static_cast<std::uint32_t>(i));
    }
  }
}

TEST_P(EveryKernel, ReadsEvery16BitGradientAsTheScalarKernel) {
  AdamState state(65'536);
  for (std::size_t i = 0; i < state.count(); ++i) {
    state.gbf.span()[i].bits = static_cast<std::uint16_t>(i);
    state.gfp.span()[i].bits = static_cast<std::uint16_t>(i);
  }
  AdamState again = state;
  expect_scalar_bits(state, AdamConfig{}, DType::bf16, WeightType::none);
  expect_scalar_bits(again, AdamConfig{}, DType::fp16, WeightType::none);
}

// A learning rate of 0 leaves the master unchanged, so the weight shows the rounding alone. The
// masters are all 16-bit upper halves, with tails around every tie of bf16 (bit 15) and of normal
// fp16 (bit 12). Ties of fp16 subnormals are at higher bits, which the upper halves sweep.
TEST_P(EveryKernel, WritesTheMasterRoundedToNearestEven) {
  for (const std::uint32_t tail :
       {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x3000U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
    AdamState state(65'536);
    for (std::uint32_t upper = 0; upper < 65'536; ++upper) {
      state.p.span()[upper] = std::bit_cast<float>((upper << 16U) | tail);
    }
    const AdamConfig config{.learning_rate = 0};
    step_tile_on(*kernel_, config, {}, state.tile(DType::fp32, WeightType::bf16));
    step_tile_on(*kernel_, config, {}, state.tile(DType::fp32, WeightType::fp16));
    step_tile_on(*kernel_, config, {}, state.tile(DType::fp32, WeightType::fp32));
    for (std::uint32_t upper = 0; upper < 65'536; ++upper) {
      const float p = state.p.span()[upper];
      const float given = std::bit_cast<float>((upper << 16U) | tail);
      const std::uint32_t kept = std::isnan(given) ? 0x7FC00000U : bits_of(given);
      ASSERT_EQ(bits_of(p), kept) << std::hex << bits_of(given);
      ASSERT_EQ(state.wbf.span()[upper].bits, to_bf16(p).bits) << std::hex << bits_of(p);
      ASSERT_EQ(state.wfp.span()[upper].bits, to_fp16(p).bits) << std::hex << bits_of(p);
      ASSERT_EQ(bits_of(state.w32.span()[upper]), bits_of(p));
    }
  }
}

// A large, aligned weight is streamed around the caches.
TEST_P(EveryKernel, GivesTheScalarBitsForLargeTiles) {
  constexpr std::size_t kLarge = 1'048'576 + 37;
  std::vector<Bf16> storage(kLarge + 32), expected_storage(kLarge);
  const std::uintptr_t misaligned = reinterpret_cast<std::uintptr_t>(storage.data()) % 64;
  const std::span<Bf16> weight =
      std::span<Bf16>(storage).subspan((64 - misaligned) % 64 / sizeof(Bf16), kLarge);
  AdamState state(kLarge), expected(kLarge);
  state.fill(5);
  expected.fill(5);
  Tile tile = state.tile(DType::bf16), expected_tile = expected.tile(DType::bf16);
  tile.weight = weight;
  expected_tile.weight = std::span<Bf16>(expected_storage);
  step_tile_on(*kernel_, {}, {}, tile);
  step_tile_on(scalar_kernel(), {}, {}, expected_tile);
  EXPECT_TRUE(state.same_bits(expected));
  EXPECT_EQ(std::memcmp(weight.data(), expected_storage.data(), kLarge * sizeof(Bf16)), 0);
}

TEST_P(EveryKernel, KeepsANonFiniteGradientToItsOwnElement) {
  constexpr std::size_t kCount = 67;  // whole vectors of every kernel and a rest
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    AdamState good(kCount);
    good.fill(7);
    AdamState before = good;
    step_tile_on(*kernel_, {}, {}, good.tile(DType::bf16, WeightType::bf16));
    for (std::size_t at = 0; at < kCount; ++at) {
      AdamState state = before;
      state.set_gradient(at, bad);
      step_tile_on(*kernel_, {}, {}, state.tile(DType::bf16, WeightType::bf16));
      for (std::size_t i = 0; i < kCount; ++i) {
        if (i == at) {
          EXPECT_FALSE(std::isfinite(state.p.span()[i]));
          EXPECT_FALSE(std::isfinite(state.m.span()[i]));
          EXPECT_FALSE(std::isfinite(state.v.span()[i]));
          continue;
        }
        ASSERT_EQ(bits_of(state.p.span()[i]), bits_of(good.p.span()[i]));
        ASSERT_EQ(bits_of(state.m.span()[i]), bits_of(good.m.span()[i]));
        ASSERT_EQ(bits_of(state.v.span()[i]), bits_of(good.v.span()[i]));
        ASSERT_EQ(state.wbf.span()[i].bits, good.wbf.span()[i].bits);
      }
    }
  }
}

TEST_P(EveryKernel, SumsSquaresToTheScalarBits) {
  const auto executor = make_executor(1);
  for (const std::size_t count :
       Sizes{0, 1, 7, 15, 16, 31, 32, 33, 63, 1000, 16'384, 16'385, 50'001}) {
    for (const std::size_t offset : Sizes{0, 1, 5}) {
      AdamState state(count, offset);
      state.fill(static_cast<unsigned>(count) + 1);
      for (const DType type : kGradientTypes) {
        const GradientSpan gradient = state.gradient(type, 0, count);
        const GradientStats expected =
            gradient_stats_on(scalar_kernel(), {&gradient, 1}, *executor);
        const GradientStats stats = gradient_stats_on(*kernel_, {&gradient, 1}, *executor);
        EXPECT_EQ(std::bit_cast<std::uint64_t>(stats.squared_norm),
                  std::bit_cast<std::uint64_t>(expected.squared_norm))
            << count << " of " << name_of(type);
        EXPECT_TRUE(stats.finite);
      }
    }
  }
}

TEST_P(EveryKernel, FindsANonFiniteElementAtEveryPosition) {
  constexpr std::size_t kCount = 67;
  const auto executor = make_executor(1);
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < kCount; ++at) {
      AdamState state(kCount);
      state.fill(9);
      state.set_gradient(at, bad);
      for (const DType type : kGradientTypes) {
        const GradientSpan gradient = state.gradient(type, 0, kCount);
        const GradientStats stats = gradient_stats_on(*kernel_, {&gradient, 1}, *executor);
        EXPECT_FALSE(stats.finite) << at;
        EXPECT_FALSE(std::isfinite(stats.squared_norm)) << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryKernel, ::testing::ValuesIn(kernel_names()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace sluice::cpu_adam
