// What is refused is refused before anything is written, with the value in the message.

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
using test::WeightType;
using ::testing::HasSubstr;

constexpr std::size_t kCount = 40;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string message_of(const AdamConfig& config, const AdamStep& how, const AdamTile& tile) {
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

void expect_refused(const AdamConfig& config, const AdamStep& how,
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
    expect_refused({.learning_rate = bad}, {}, {"learning_rate"});
    expect_refused({.epsilon = bad}, {}, {"epsilon"});
    expect_refused({.weight_decay = bad}, {}, {"weight_decay"});
  }
  for (const double bad : {-0.1, 1.0, 1.5, kInf, kNan}) {
    expect_refused({.beta1 = bad}, {}, {"beta1"});
    expect_refused({.beta2 = bad}, {}, {"beta2"});
  }
}

TEST(AdamConfig, TheMessageHoldsTheValue) {
  expect_refused({.learning_rate = -0.125}, {}, {"learning_rate", "-0.125"});
  expect_refused({.beta1 = 1.5}, {}, {"beta1", "1.5", "[0, 1)"});
  expect_refused({.epsilon = kNan}, {}, {"epsilon", "nan"});
  expect_refused({.weight_decay = kInf}, {}, {"weight_decay", "inf"});
}

TEST(AdamConfig, ValuesThatFp32CannotHoldAreRefused) {
  expect_refused({.learning_rate = 1e300}, {}, {"learning_rate", "fp32"});
  expect_refused({.epsilon = 1e39}, {}, {"epsilon", "1e+39"});
  expect_refused({.weight_decay = 1e39, .decay = WeightDecay::l2}, {}, {"weight_decay", "1e+39"});
  expect_refused({.weight_decay = 1e300, .decay = WeightDecay::decoupled}, {}, {"weight_decay"});
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

TEST(AdamTile, SpansOfDifferentLengthAreRefusedWithBothLengths) {
  AdamState state(kCount);
  state.fill(1);
  const AdamState before = state;
  const auto expect = [&](const AdamTile& tile, const char* name) {
    const std::string message = message_of({}, {}, tile);
    EXPECT_THAT(message, HasSubstr(name));
    EXPECT_THAT(message, HasSubstr("39"));
    EXPECT_THAT(message, HasSubstr("40"));
    EXPECT_TRUE(state.same_bits(before));
  };
  const AdamTile good = state.tile(DType::bf16, WeightType::fp16);
  AdamTile tile = good;
  tile.moment1 = tile.moment1.first(39);
  expect(tile, "moment1");
  tile = good;
  tile.moment2 = tile.moment2.first(39);
  expect(tile, "moment2");
  tile = good;
  tile.gradient = state.gradient(DType::bf16, 0, 39);
  expect(tile, "gradient");
  tile = good;
  tile.weight = state.weight(WeightType::fp16, 0, 39);
  expect(tile, "weight");
  tile = good;
  tile.master = tile.master.first(39);
  expect(tile, "moment1");
}

TEST(AdamTile, OverlappingSpansAreRefusedByName) {
  std::vector<float> memory(6 * kCount, 1.0F);
  const std::vector<float> before = memory;
  const auto part = [&](std::size_t first) {
    return std::span<float>(memory).subspan(first, kCount);
  };
  const auto gradient = [&](std::size_t first) { return std::span<const float>(part(first)); };
  const auto refuse = [&](const AdamTile& tile, const char* a, const char* b) {
    const std::string message = message_of({}, {}, tile);
    EXPECT_THAT(message, HasSubstr(a));
    EXPECT_THAT(message, HasSubstr(b));
    EXPECT_EQ(memory, before);
  };
  refuse({part(0), part(39), part(80), gradient(120), std::monostate{}}, "master", "moment1");
  refuse({part(0), part(40), part(41), gradient(120), std::monostate{}}, "moment1", "moment2");
  refuse({part(80), part(40), part(0), gradient(80), std::monostate{}}, "master", "gradient");
  refuse({part(0), part(40), part(80), gradient(120), part(159)}, "gradient", "weight");
  refuse({part(0), part(40), part(80), gradient(160), part(1)}, "master", "weight");
  // A 16-bit weight inside the last element of another span.
  const std::span<Bf16> inside(reinterpret_cast<Bf16*>(memory.data() + 119), kCount);
  refuse({part(0), part(40), part(80), gradient(160), inside}, "moment2", "weight");
}

TEST(AdamTile, NeighbouringSpansAreFine) {
  std::vector<float> memory(5 * kCount, 1.0F);
  const auto part = [&](std::size_t i) {
    return std::span<float>(memory).subspan(i * kCount, kCount);
  };
  const AdamTile tile{part(2), part(0), part(1), std::span<const float>(part(4)), part(3)};
  EXPECT_EQ(message_of({}, {}, tile), "");
}

TEST(AdamTile, AnEmptyTileIsFineAndItsConfigIsStillChecked) {
  const AdamTile empty{{}, {}, {}, std::span<const Bf16>(), std::span<Bf16>()};
  EXPECT_EQ(message_of({}, {}, empty), "");
  EXPECT_THAT(message_of({.beta1 = 2}, {}, empty), HasSubstr("beta1"));
}

}  // namespace
}  // namespace sluice::cpu_adam
