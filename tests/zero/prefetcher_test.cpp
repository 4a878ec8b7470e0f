// The order of gathers and releases in a pass.

#include "sluice/zero/prefetcher.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "rank_units.hpp"

namespace sluice::zero {
namespace {

using test::layout_of;
using test::Rank;
using test::single;

TEST(Prefetcher, GathersAheadKeepsWhatItIsToldAndReleasesTheRest) {
  const UnitLayout layout = layout_of("u", 100, 1);
  Rank rank = single();
  std::vector<std::unique_ptr<ShardedUnit>> owners;
  std::vector<ShardedUnit*> units;
  for (int i = 0; i < 4; ++i) {
    owners.push_back(rank.unit(layout));
    units.push_back(owners.back().get());
  }
  Prefetcher prefetcher(units, {true, false, false, false}, {.units_ahead = 1});
  prefetcher.begin_pass({{0}, {1}, {2}, {3}, {2}, {1}, {0}});
  GatherStall stall;
  prefetcher.enter_stage(stall);
  EXPECT_EQ(units[0]->weight_state(), WeightState::gathered);
  EXPECT_NE(units[1]->weight_state(), WeightState::sharded);
  EXPECT_EQ(units[2]->weight_state(), WeightState::sharded);
  for (int stage = 0; stage < 3; ++stage) {
    prefetcher.leave_stage();
    prefetcher.enter_stage(stall);
  }
  EXPECT_EQ(units[0]->weight_state(), WeightState::gathered) << "kept";
  EXPECT_EQ(units[1]->weight_state(), WeightState::sharded) << "released";
  EXPECT_EQ(units[3]->weight_state(), WeightState::gathered) << "in use";
  prefetcher.end_pass();
  for (const ShardedUnit* unit : units) EXPECT_EQ(unit->weight_state(), WeightState::sharded);
}

TEST(Prefetcher, StaysWithinTheLiveElements) {
  const UnitLayout layout = layout_of("u", 100, 1);
  Rank rank = single();
  const auto a = rank.unit(layout);
  const auto b = rank.unit(layout);
  Prefetcher prefetcher({a.get(), b.get()}, {false, false},
                        {.units_ahead = 1, .live_elements = layout.flat_count});
  prefetcher.begin_pass({{0}, {1}});
  GatherStall stall;
  prefetcher.enter_stage(stall);
  EXPECT_EQ(b->weight_state(), WeightState::sharded);
  prefetcher.leave_stage();
  prefetcher.enter_stage(stall);
  EXPECT_EQ(b->weight_state(), WeightState::gathered);
  EXPECT_EQ(a->weight_state(), WeightState::sharded);
}

TEST(Prefetcher, GathersPastUnitsOfFewElements) {
  const UnitLayout layout = layout_of("u", 1 << 17, 1);
  const UnitLayout small = layout_of("norm", 100, 1);
  Rank rank = single();
  const auto block = rank.unit(layout);
  const auto norm = rank.unit(small);
  const auto head = rank.unit(layout);
  Prefetcher prefetcher({block.get(), norm.get(), head.get()}, {false, false, false},
                        {.units_ahead = 1});
  prefetcher.begin_pass({{0}, {1}, {2}, {0}});
  GatherStall stall;
  prefetcher.enter_stage(stall);
  EXPECT_NE(head->weight_state(), WeightState::sharded) << "gathered while the block computes";
  prefetcher.leave_stage();
  EXPECT_EQ(block->weight_state(), WeightState::sharded) << "two stages before its next use";
  prefetcher.enter_stage(stall);
  prefetcher.leave_stage();
  EXPECT_NE(head->weight_state(), WeightState::sharded) << "used next";
}

TEST(Prefetcher, RefusesUnitsThatItDoesNotHave) {
  const UnitLayout layout = layout_of("u", 1 << 12, 1);
  Rank rank = single();
  const auto only = rank.unit(layout);
  Prefetcher prefetcher({only.get()}, {false}, {});
  EXPECT_THROW(prefetcher.begin_pass({{0}, {1}}), InvalidArgument);
  EXPECT_THROW(prefetcher.hold(1), InvalidArgument);
  EXPECT_THROW(prefetcher.let_go(1), InvalidArgument);
  EXPECT_THROW(prefetcher.let_go(0), InvalidArgument) << "not held";
  GatherStall stall;
  EXPECT_THROW(prefetcher.enter_stage(stall), InvalidArgument) << "no stage has begun";
  EXPECT_THROW(Prefetcher({nullptr}, {false}, {}), InvalidArgument);
  EXPECT_THROW(ends_of_ahead({{0}, {std::size_t{1} << 40U}}, {5}, 1), InvalidArgument);
}

TEST(Prefetcher, CountsStagesOfFewElementsTogether) {
  const std::vector<std::uint64_t> elements = {320, 6, 6, 300};
  const std::vector<std::vector<std::size_t>> stages = {{0}, {1}, {2}, {3}, {1, 2}, {0}};
  EXPECT_EQ(ends_of_ahead(stages, elements, 0), (std::vector<std::size_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(ends_of_ahead(stages, elements, 1), (std::vector<std::size_t>{3, 4, 4, 5, 6, 6}));
  EXPECT_EQ(ends_of_ahead(stages, elements, 2), (std::vector<std::size_t>{4, 5, 5, 6, 6, 6}));
}

}  // namespace
}  // namespace sluice::zero
