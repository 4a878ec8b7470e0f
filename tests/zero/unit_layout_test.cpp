#include "sluice/zero/unit_layout.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::zero {
namespace {

UnitLayout example(int world_size) {
  UnitLayout layout;
  layout.name = "h.0";
  add_param(layout, "weight", {3, 11});
  add_param(layout, "bias", {11});
  add_param(layout, "scale", {64});
  finish_layout(layout, world_size);
  return layout;
}

TEST(UnitLayout, ParametersStartAtAlignedElements) {
  const UnitLayout layout = example(1);
  ASSERT_EQ(layout.params.size(), 3U);
  EXPECT_EQ(layout.params[0].offset_count, 0U);
  EXPECT_EQ(layout.params[0].count, 33U);
  EXPECT_EQ(layout.params[1].offset_count, 64U);
  EXPECT_EQ(layout.params[1].count, 11U);
  EXPECT_EQ(layout.params[2].offset_count, 96U);
  EXPECT_EQ(layout.param_count, 33U + 11U + 64U);
  EXPECT_EQ(layout.flat_count, kShardAlignment);
}

TEST(UnitLayout, TheFlatBufferSplitsIntoAlignedShards) {
  for (int world_size = 1; world_size <= 7; ++world_size) {
    const UnitLayout layout = example(world_size);
    EXPECT_GE(layout.flat_count, 160U);
    EXPECT_LT(layout.flat_count, 160U + kShardAlignment * static_cast<std::uint64_t>(world_size));
    std::uint64_t next = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const ShardRange shard = shard_range(layout, rank, world_size);
      EXPECT_EQ(shard.begin, next);
      EXPECT_EQ(shard.count % kShardAlignment, 0U);
      next = shard.begin + shard.count;
    }
    EXPECT_EQ(next, layout.flat_count) << world_size;
  }
}

TEST(UnitLayout, ARangeHasAPartOfEachParameterThatItMeets) {
  const ParamLayout bias = example(1).params[1];  // elements 64 to 74
  const auto part = [&](std::uint64_t begin, std::uint64_t count) {
    const ShardRange range = part_in(bias, begin, count);
    return std::pair(range.count == 0 ? 0 : range.begin, range.count);
  };
  using Part = std::pair<std::uint64_t, std::uint64_t>;
  EXPECT_EQ(part(0, 160), Part(64, 11));
  EXPECT_EQ(part(60, 10), Part(64, 6));
  EXPECT_EQ(part(70, 3), Part(70, 3));
  EXPECT_EQ(part(74, 86), Part(74, 1));
  EXPECT_EQ(part(0, 64), Part(0, 0));
  EXPECT_EQ(part(75, 85), Part(0, 0));
}

TEST(UnitLayout, RanksAndWorldsThatDoNotExistAreRefused) {
  const UnitLayout layout = example(2);
  EXPECT_THROW(shard_range(layout, 2, 2), InvalidArgument);
  EXPECT_THROW(shard_range(layout, -1, 2), InvalidArgument);
  EXPECT_THROW(shard_range(layout, 0, 0), InvalidArgument);
  EXPECT_THROW(shard_range(layout, 0, 7), InvalidArgument);
  UnitLayout unfinished;
  EXPECT_THROW(finish_layout(unfinished, 0), InvalidArgument);
}

// The flat buffer of 2048 elements divides by 2, but the shards would not be whole pages.
TEST(UnitLayout, ALayoutForAnotherNumberOfRanksIsRefused) {
  EXPECT_THROW(shard_range(example(1), 0, 2), InvalidArgument);
  EXPECT_THROW(shard_count(example(3), 2), InvalidArgument);
  UnitLayout unfinished;
  add_param(unfinished, "weight", {64});
  EXPECT_THROW(shard_count(unfinished, 1), InvalidArgument);
}

TEST(UnitLayout, ShapesThatAreEmptyOrTooLargeAreRefused) {
  UnitLayout layout;
  EXPECT_THROW(add_param(layout, "empty", {4, 0}), InvalidArgument);
  EXPECT_THROW(add_param(layout, "negative", {-4}), InvalidArgument);
  constexpr std::int64_t kLarge = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(add_param(layout, "overflow", {kLarge, 3}), InvalidArgument);
  EXPECT_EQ(layout.param_count, 0U);
}

}  // namespace
}  // namespace sluice::zero
