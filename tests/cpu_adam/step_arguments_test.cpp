// A step as values gives the bits of step_tile(). run_step() runs it here; a GPU compiles the
// element of the scalar kernel, which kernel_conformance_test.cpp compares with all others, and
// gpu_step_test.cpp compares with the GPU.

#include "sluice/cpu_adam/step_arguments.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "adam_state.hpp"
#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {
namespace {

using sluice::test::message_of;
using test::AdamState;
using test::Layout;
using test::Sizes;

constexpr std::uint64_t kKeys = std::uint64_t{1} << 32U;  // element numbers of one rounding key

bool run_all(const std::vector<StepArguments>& runs) {
  bool finite = true;
  for (const StepArguments& run : runs) finite = run_step(run) && finite;
  return finite;
}

TEST(StepArguments, GiveTheBitsOfStepTileForEveryType) {
  const Step how{.step = 3, .gradient_factor = 0.37F, .seed = 5};
  for (const std::size_t count : Sizes{1, 67, 1000}) {
    AdamState start(count, 1);
    start.fill(static_cast<unsigned>(count));
    for (const OptimizerConfig& config : test::every_optimizer()) {
      for (const Layout& layout : test::kLayouts) {
        for (const DType gradient : test::kGradientTypes) {
          for (const WeightType weight : test::kWeightTypes) {
            AdamState state = start, expected = start;
            const auto tile_of = [&](AdamState& of) {
              return of.tile(config, layout, gradient, weight, 0, count);
            };
            const bool finite = step_tile(config, how, tile_of(expected));
            const std::vector<StepArguments> runs = step_arguments(config, how, tile_of(state));
            EXPECT_EQ(runs.size(), 1U);
            EXPECT_TRUE(state.same_bits(start)) << "written before the run";
            EXPECT_EQ(run_all(runs), finite);
            EXPECT_TRUE(state.same_bits(expected))
                << count << " elements, optimizer " << config.index() << ", " << name_of(layout)
                << ", gradient " << name_of(gradient) << ", weight type "
                << static_cast<int>(weight);
          }
        }
      }
    }
  }
}

// step_tile() streams the weight, run_step() does not.
TEST(StepArguments, GiveTheBitsOfALargeStepTile) {
  AdamState state(1'048'576 + 37);
  state.fill(2);
  AdamState expected = state;
  step_tile({}, {}, expected.tile(DType::bf16, WeightType::bf16));
  run_all(step_arguments({}, {}, state.tile(DType::bf16, WeightType::bf16)));
  EXPECT_TRUE(state.same_bits(expected));
}

TEST(StepArguments, AreTwoRunsWhereTheUpperHalfOfTheNumbersChanges) {
  const AdamConfig config{.amsgrad = true};
  const Layout layout{MasterLayout::split, DType::bf16};
  AdamState state(1'000);
  state.fill(3);
  AdamState expected = state;
  const auto tile_of = [&](AdamState& of) {
    Tile tile = of.tile(config, layout, DType::bf16, WeightType::none, 0, of.count());
    tile.first_element = kKeys - 300;
    return tile;
  };
  const std::vector<StepArguments> runs = step_arguments(config, {.seed = 7}, tile_of(state));
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].tile.count, 300U);
  EXPECT_EQ(runs[0].tile.rounding.first, static_cast<std::uint32_t>(kKeys - 300));
  EXPECT_EQ(runs[1].tile.count, 700U);
  EXPECT_EQ(runs[1].tile.rounding.first, 0U);
  EXPECT_EQ(runs[1].tile.low, state.low.span().data() + 300);
  run_all(runs);
  step_tile(config, {.seed = 7}, tile_of(expected));
  EXPECT_TRUE(state.same_bits(expected));
}

TEST(StepArguments, AreOneRunUpToTheLastNumberOfAKeyAndFromTheFirst) {
  AdamState state(100);
  for (const std::uint64_t first : {kKeys - 100, kKeys}) {
    Tile tile = state.tile();
    tile.first_element = first;
    EXPECT_EQ(step_arguments({}, {}, tile).size(), 1U);
  }
}

// Addresses as those of a GPU: a read or write would be a fault.
TEST(StepArguments, TouchNoMemoryOfTheTile) {
  constexpr std::size_t kCount = 1'000;
  const auto at = [](std::uintptr_t number) {
    return reinterpret_cast<void*>(number << 40U);  // NOLINT(performance-no-int-to-ptr)
  };
  const auto floats = [&](std::uintptr_t number) {
    return std::span<float>(static_cast<float*>(at(number)), kCount);
  };
  const Tile tile{.master = floats(1),
                  .moments = {floats(2), floats(3)},
                  .gradient = std::span<const Fp16>(static_cast<const Fp16*>(at(4)), kCount),
                  .weight = std::span<Bf16>(static_cast<Bf16*>(at(5)), kCount),
                  .first_element = kKeys - 10};
  const std::vector<StepArguments> runs = step_arguments(AdamConfig{}, {}, tile);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].rule, Rule::adam);
  EXPECT_EQ(runs[0].tile.master, at(1));
  EXPECT_EQ(runs[0].tile.moments[1], at(3));
  EXPECT_EQ(runs[0].tile.gradient, at(4));
  EXPECT_EQ(runs[0].tile.gradient_type, DType::fp16);
  EXPECT_EQ(runs[0].tile.weight, at(5));
  EXPECT_EQ(runs[0].tile.weight_type, WeightType::bf16);
  EXPECT_EQ(runs[1].tile.moments[0], floats(2).data() + 10);
  EXPECT_EQ(runs[1].tile.gradient, static_cast<const Fp16*>(at(4)) + 10);
}

TEST(StepArguments, AreRefusedWithTheMessageOfStepTile) {
  AdamState state(40);
  const auto refuse = [&](const OptimizerConfig& config, const Step& how, const Tile& tile) {
    const std::string expected = message_of<InvalidArgument>([&] { step_tile(config, how, tile); });
    EXPECT_EQ(message_of<InvalidArgument>([&] { step_arguments(config, how, tile); }), expected);
  };
  const Tile good = state.tile(DType::bf16, WeightType::bf16);
  refuse(AdamConfig{.beta1 = 2}, {}, good);
  refuse({}, {.step = 0}, good);
  refuse({}, {.gradient_factor = std::numeric_limits<float>::infinity()}, good);
  refuse(LionConfig{}, {}, good);
  Tile bad = good;
  bad.gradient = state.gradient(DType::bf16, 0, 39);
  refuse({}, {}, bad);
  bad = good;
  bad.weight = state.m.span();
  refuse({}, {}, bad);
  bad = good;
  bad.master = SplitMaster{state.high.span(), state.low.span()};
  refuse({}, {}, bad);
}

TEST(StepArguments, AreNoneForATileWithoutElements) {
  const Tile empty{.gradient = std::span<const Bf16>(), .weight = std::span<Bf16>()};
  EXPECT_TRUE(step_arguments({}, {}, empty).empty());
  EXPECT_THROW(step_arguments({}, {.step = 0}, empty), InvalidArgument);
}

TEST(RunStep, TellsOfANonFiniteValueAsStepTile) {
  const AdamConfig still{.learning_rate = 0};
  AdamState state(67);
  state.fill(4);
  const auto run = [&](const AdamState& start, const Layout& layout, WeightType weight) {
    AdamState copy = start, expected = start;
    const auto tile_of = [&](AdamState& of) {
      return of.tile(still, layout, DType::fp32, weight, 0, of.count());
    };
    const bool finite = run_all(step_arguments(still, {}, tile_of(copy)));
    EXPECT_EQ(finite, step_tile(still, {}, tile_of(expected)));
    return finite;
  };
  for (const Layout& layout : test::kLayouts) {
    EXPECT_TRUE(run(state, layout, WeightType::fp16));
    AdamState bad = state;
    bad.set_gradient(50, std::numeric_limits<float>::quiet_NaN());
    EXPECT_FALSE(run(bad, layout, WeightType::none));
  }
  state.set(20, 65520, 0, 1, 0);
  EXPECT_FALSE(run(state, {}, WeightType::fp16)) << "infinite as a weight";
  EXPECT_TRUE(run(state, {}, WeightType::bf16));
  state.set(20, 3e38F, 3e38F, 1, 0);
  EXPECT_TRUE(run(state, {}, WeightType::none)) << "only the sum of master and moment overflows";
}

}  // namespace
}  // namespace sluice::cpu_adam
