// A step of many tensors in groups equals a step of each tensor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "adam_state.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/executor.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;

// Sizes from 0 to several chunks of 65,536, at every alignment in a common buffer.
std::vector<std::size_t> some_sizes() {
  std::vector<std::size_t> sizes = {0, 1, 31, 200'003, 0, 65'536, 65'535};
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) sizes.push_back(random() % (i % 20 == 0 ? 20'000 : 300));
  sizes.insert(sizes.end(), {131'073, 0, 700'001, 0});  // more than a million: the weight streams
  return sizes;
}

std::vector<Tile> tiles_of(AdamState& state, const OptimizerConfig& config,
                           const std::vector<std::size_t>& sizes, std::size_t first) {
  std::vector<Tile> tiles;
  for (const std::size_t size : sizes) {
    tiles.push_back(state.tile(config, {}, DType::bf16, WeightType::bf16, first, size));
    first += size;
  }
  return tiles;
}

TEST(ManyTensors, GiveTheBitsOfEachOfThem) {
  const std::vector<std::size_t> sizes = some_sizes();
  std::size_t count = 0;
  for (const std::size_t size : sizes) count += size;
  const OptimizerConfig first = AdamConfig{.weight_decay = 0.1};
  const OptimizerConfig second = LionConfig{.learning_rate = 1e-2};
  AdamState start(2 * count);
  start.fill(1);
  const Step how{.step = 2, .gradient_factor = 0.5F};

  AdamState each = start;
  for (const Tile& tile : tiles_of(each, first, sizes, 0)) step_tile(first, how, tile);
  for (const Tile& tile : tiles_of(each, second, sizes, count)) step_tile(second, how, tile);

  for (const int threads : {1, 2, 7, 64}) {
    const auto executor = make_executor(threads);
    AdamState together = start;
    const std::vector<Tile> tiles = tiles_of(together, first, sizes, 0);
    const std::vector<Tile> more = tiles_of(together, second, sizes, count);
    const Group groups[] = {{first, tiles}, {second, more}};
    step(groups, how, *executor);
    EXPECT_TRUE(together.same_bits(each)) << threads << " threads";
  }
}

// Adjacent tiles are stepped as one; their elements' numbers still key the noise.
TEST(ManyTensors, NeighboursInMemoryKeepTheNumbersOfTheirElements) {
  const OptimizerConfig config = AdamConfig{.weight_decay = 0.1};
  const test::Layout layout{MasterLayout::split, DType::bf16};
  const std::size_t sizes[] = {100, 33, 64, 1'000, 7};
  const std::uint64_t firsts[] = {0, 100, 5'000, 5'064,
                                  6'065};  // before the last, one number is skipped
  AdamState start(1'204);
  start.fill(3);
  const Step how{.step = 3, .gradient_factor = 0.5F, .seed = 9};
  const auto tiles_of_all = [&](AdamState& state) {
    std::vector<Tile> tiles;
    std::size_t at = 0;
    for (std::size_t t = 0; t < std::size(sizes); ++t) {
      tiles.push_back(state.tile(config, layout, DType::bf16, WeightType::none, at, sizes[t]));
      tiles.back().first_element = firsts[t];
      at += sizes[t];
    }
    return tiles;
  };
  AdamState each = start;
  for (const Tile& tile : tiles_of_all(each)) step_tile(config, how, tile);
  AdamState together = start;
  const std::vector<Tile> tiles = tiles_of_all(together);
  const Group group{config, tiles};
  step({&group, 1}, how, *make_executor(2));
  EXPECT_TRUE(together.same_bits(each));
}

TEST(ManyTensors, NothingIsWrittenWhenTheLastOneIsWrong) {
  AdamState state(100);
  state.fill(2);
  const AdamState before = state;
  const AdamConfig config;
  std::vector<Tile> tiles = tiles_of(state, config, {40, 60}, 0);
  tiles.back().gradient = state.gradient(DType::bf16, 40, 59);
  const Group groups[] = {{config, tiles}};
  const auto executor = make_executor(2);
  EXPECT_THROW(step(groups, {}, *executor), InvalidArgument);
  tiles = tiles_of(state, config, {40, 60}, 0);
  const Group wrong[] = {{config, tiles}, {AdamConfig{.beta1 = 2}, {}}};
  EXPECT_THROW(step(wrong, {}, *executor), InvalidArgument);
  EXPECT_TRUE(state.same_bits(before));
}

TEST(ManyTensors, WhatIsRefusedIsNamed) {
  const auto message_of = [](std::span<const Group> groups) {
    const auto executor = make_executor(2);
    try {
      step(groups, {}, *executor);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  constexpr std::size_t kSize = 16;
  AdamState state(2'000 * kSize);
  state.fill(2);
  const AdamConfig config;
  std::vector<Tile> tiles = tiles_of(state, config, std::vector<std::size_t>(2'000, kSize), 0);
  tiles[777].gradient = state.gradient(DType::bf16, 0, kSize - 1);
  tiles[1'900].gradient = state.gradient(DType::bf16, 0, kSize - 2);
  const Group groups[] = {{config, {tiles.data(), 100}}, {config, {tiles.data() + 100, 1'900}}};
  EXPECT_EQ(message_of(groups), "group 1, tile 677: gradient has 15 elements, master has 16");
  tiles[777] = tiles[776];
  tiles[1'900] = tiles[776];
  const Group wrong[] = {{config, tiles}, {AdamConfig{.beta1 = 2}, tiles}};
  EXPECT_THAT(message_of(wrong), ::testing::StartsWith("group 1: Adam: beta1 is 2"));
  // Behind the first of two joined tiles.
  tiles[0] = state.tile(config, {}, DType::bf16, WeightType::bf16, 0, kSize);
  tiles[1] = state.tile(config, {}, DType::bf16, WeightType::bf16, kSize, kSize);
  for (std::size_t t = 0; t < 2; ++t)
    tiles[t].moments[0] = state.p.span().subspan((t + 1) * kSize, kSize);
  const Group overlapping[] = {{config, {tiles.data(), 2}}};
  EXPECT_THAT(message_of(overlapping),
              ::testing::StartsWith("group 0, tile 0: master and moment 1 share memory"));
}

TEST(ManyTensors, NoneAtAllAreFine) {
  const auto executor = make_executor(2);
  step(std::span<const Group>(), {}, *executor);
  const Group empty[] = {{AdamConfig{}, {}}};
  step(empty, {}, *executor);
}

}  // namespace
}  // namespace sluice::cpu_adam
