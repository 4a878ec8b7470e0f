// Invalid arguments are refused before anything is written, with the value in the message.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "adam_state.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 40;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string message_of(const OptimizerConfig& config, const Step& how, const Tile& tile) {
  std::string message;
  try {
    step_tile(config, how, tile);
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  const auto executor = make_executor(2);
  EXPECT_EQ(message.empty(), [&] {
    try {
      step(config, how, tile, *executor);
      return true;
    } catch (const InvalidArgument&) {
      return false;
    }
  }());
  return message;
}

void expect_refused(const OptimizerConfig& config, const Step& how,
                    const std::vector<std::string>& parts) {
  AdamState state(kCount);
  state.fill(1);
  const AdamState before = state;
  const std::string message = message_of(config, how, state.tile(DType::bf16, WeightType::bf16));
  for (const std::string& part : parts) EXPECT_THAT(message, HasSubstr(part));
  EXPECT_TRUE(state.same_bits(before)) << "written before the check";
}

TEST(AdamConfig, ValuesOutOfRangeAreRefusedByName) {
  for (const double bad : {-1.0, kInf, -kInf, kNan}) {
    expect_refused(AdamConfig{.learning_rate = bad}, {}, {"learning_rate"});
    expect_refused(AdamConfig{.epsilon = bad}, {}, {"epsilon"});
    expect_refused(AdamConfig{.weight_decay = bad}, {}, {"weight_decay"});
  }
  for (const double bad : {-0.1, 1.0, 1.5, kInf, kNan}) {
    expect_refused(AdamConfig{.beta1 = bad}, {}, {"beta1"});
    expect_refused(AdamConfig{.beta2 = bad}, {}, {"beta2"});
  }
}

// As torch's LinearLR leaves it at the end of its way to 0.
TEST(OptimizerConfig, ARateBelowZeroByRoundingCountsAsZero) {
  const std::vector<OptimizerConfig> configs = {
      AdamConfig{.weight_decay = 0.25}, AdagradConfig{.weight_decay = 0.25},
      LionConfig{.weight_decay = 0.25}, SgdConfig{.momentum = 0.5}};
  for (OptimizerConfig config : configs) {
    const auto set_rate = [&config](double rate) {
      std::visit([rate](auto& of) { of.learning_rate = rate; }, config);
    };
    const auto fill_and_step = [&config](AdamState& state) {
      state.fill(1);
      step_tile(config, {}, state.tile(config, {}, DType::fp32, WeightType::none, 0, kCount));
    };
    AdamState still(kCount);
    set_rate(0);
    fill_and_step(still);
    for (const double rate : {-1.8503717077085945e-20, -1e-12}) {
      AdamState state(kCount);
      set_rate(rate);
      fill_and_step(state);
      EXPECT_TRUE(state.same_bits(still)) << rate;
    }
    set_rate(-2e-12);
    EXPECT_THROW(check_values(config), InvalidArgument);
  }
}

// A subnormal epsilon works at every step, although the bias correction could round it to 0.
TEST(AdamConfig, AnEpsilonThatFp32HasIsKeptAboveZero) {
  for (const double epsilon : {1e-46, 1e-60})
    expect_refused(AdamConfig{.epsilon = epsilon}, {}, {"epsilon", "0 in fp32"});
  for (const std::int64_t number : {1, 100'000}) {
    AdamState state(kCount);
    for (std::size_t i = 0; i < kCount; ++i) state.set(i, 1, 0, 0, 0);
    step_tile(AdamConfig{.epsilon = 2e-45}, {.step = number}, state.tile());
    EXPECT_EQ(state.p.span()[0], 1) << "0 / 0 at step " << number;
  }
}

TEST(AdamConfig, TheMessageHoldsTheValue) {
  expect_refused(AdamConfig{.learning_rate = -0.125}, {}, {"learning_rate", "-0.125"});
  expect_refused(AdamConfig{.beta1 = 1.5}, {}, {"beta1", "1.5", "[0, 1)"});
  expect_refused(AdamConfig{.epsilon = kNan}, {}, {"epsilon", "nan"});
  expect_refused(AdamConfig{.weight_decay = kInf}, {}, {"weight_decay", "inf"});
}

TEST(AdamConfig, ValuesThatFp32CannotHoldAreRefused) {
  expect_refused(AdamConfig{.learning_rate = 1e300}, {}, {"learning_rate", "fp32"});
  expect_refused(AdamConfig{.epsilon = 1e39}, {}, {"epsilon", "1e+39"});
  expect_refused(AdamConfig{.weight_decay = 1e39, .decay = WeightDecay::l2}, {},
                 {"weight_decay", "1e+39"});
  expect_refused(AdamConfig{.weight_decay = 1e300, .decay = WeightDecay::decoupled}, {},
                 {"weight_decay"});
}

// Also where the first step makes a value that fits of them, or does not use them.
TEST(CheckValues, RefusesWhatALaterStepWouldRefuse) {
  EXPECT_THROW(check_values(AdamConfig{.learning_rate = 1e39}), InvalidArgument);
  EXPECT_THROW(check_values(AdamConfig{.learning_rate = 0, .weight_decay = 1e300}),
               InvalidArgument);
  EXPECT_THROW(check_values(SgdConfig{.momentum = 0.9, .dampening = 1e300}), InvalidArgument);
}

TEST(AdamStep, CountsFromOne) {
  expect_refused({}, {.step = 0}, {"step is 0"});
  expect_refused({}, {.step = -7}, {"step is -7"});
}

TEST(AdamStep, ANonFiniteFactorIsRefused) {
  expect_refused({}, {.gradient_factor = std::numeric_limits<float>::infinity()},
                 {"gradient_factor", "inf"});
  expect_refused({}, {.gradient_factor = std::numeric_limits<float>::quiet_NaN()},
                 {"gradient_factor", "nan"});
}

TEST(Tile, SpansOfDifferentLengthAreRefusedWithBothLengths) {
  AdamState state(kCount);
  state.fill(1);
  const AdamState before = state;
  const auto expect = [&](const Tile& tile, const char* name) {
    const std::string message = message_of({}, {}, tile);
    EXPECT_THAT(message, HasSubstr(name));
    EXPECT_THAT(message, HasSubstr("39"));
    EXPECT_THAT(message, HasSubstr("40"));
    EXPECT_TRUE(state.same_bits(before));
  };
  const Tile good = state.tile(DType::bf16, WeightType::fp16);
  Tile tile = good;
  tile.moments[0] = state.m.span().first(39);
  expect(tile, "moment 1");
  tile = good;
  tile.moments[1] = state.v.span().first(39);
  expect(tile, "moment 2");
  tile = good;
  tile.gradient = state.gradient(DType::bf16, 0, 39);
  expect(tile, "gradient");
  tile = good;
  tile.weight = state.weight(WeightType::fp16, 0, 39);
  expect(tile, "weight");
  tile = good;
  tile.master = state.p.span().first(39);
  expect(tile, "moment 1");
}

TEST(Tile, OverlappingSpansAreRefusedByName) {
  std::vector<float> memory(6 * kCount, 1.0F);
  const std::vector<float> before = memory;
  const auto part = [&](std::size_t first) {
    return std::span<float>(memory).subspan(first, kCount);
  };
  const auto gradient = [&](std::size_t first) { return std::span<const float>(part(first)); };
  const auto refuse = [&](const Tile& tile, const char* a, const char* b) {
    const std::string message = message_of({}, {}, tile);
    EXPECT_THAT(message, HasSubstr(a));
    EXPECT_THAT(message, HasSubstr(b));
    EXPECT_EQ(memory, before);
  };
  const auto tile_of = [](std::span<float> p, std::span<float> m, std::span<float> v,
                          GradientSpan g, WeightSpan w) {
    return Tile{.master = p, .moments = {m, v}, .gradient = g, .weight = w};
  };
  refuse(tile_of(part(0), part(39), part(80), gradient(120), std::monostate{}), "master",
         "moment 1");
  refuse(tile_of(part(0), part(40), part(41), gradient(120), std::monostate{}), "moment 1",
         "moment 2");
  refuse(tile_of(part(80), part(40), part(0), gradient(80), std::monostate{}), "master",
         "gradient");
  refuse(tile_of(part(0), part(40), part(80), gradient(120), part(159)), "gradient", "weight");
  refuse(tile_of(part(0), part(40), part(80), gradient(160), part(1)), "master", "weight");
  // A 16-bit weight inside the last element of another span.
  const std::span<Bf16> inside(reinterpret_cast<Bf16*>(memory.data() + 119), kCount);
  refuse(tile_of(part(0), part(40), part(80), gradient(160), inside), "moment 2", "weight");
}

TEST(Tile, NeighbouringSpansAreFine) {
  std::vector<float> memory(5 * kCount, 1.0F);
  const auto part = [&](std::size_t i) {
    return std::span<float>(memory).subspan(i * kCount, kCount);
  };
  const Tile tile{.master = part(2),
                  .moments = {part(0), part(1)},
                  .gradient = std::span<const float>(part(4)),
                  .weight = part(3)};
  EXPECT_EQ(message_of({}, {}, tile), "");
}

TEST(Tile, AnEmptyTileIsFineAndItsConfigIsStillChecked) {
  const Tile empty{.gradient = std::span<const Bf16>(), .weight = std::span<Bf16>()};
  EXPECT_EQ(message_of({}, {}, empty), "");
  EXPECT_THAT(message_of(AdamConfig{.beta1 = 2}, {}, empty), HasSubstr("beta1"));
}

// A length from an underflow: no address arithmetic may wrap.
TEST(Tile, LengthsBeyondMemoryAreRefused) {
  AdamState state(kCount);
  state.fill(1);
  const AdamState before = state;
  for (const std::size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 8 + 1}) {
    Tile tile = state.tile(DType::fp32, WeightType::none);
    tile.master = std::span<float>(state.p.span().data(), count);
    for (std::size_t k = 0; k < 2; ++k)
      tile.moments[k] = std::span<float>((k == 0 ? state.m : state.v).span().data(), count);
    tile.gradient = std::span<const float>(state.g32.span().data(), count);
    EXPECT_THAT(message_of(AdamConfig{}, {}, tile), HasSubstr("more than memory can hold"));
  }
  EXPECT_TRUE(state.same_bits(before));
}

}  // namespace
}  // namespace sluice::cpu_adam
