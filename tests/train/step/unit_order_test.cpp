// Which units a user's loop has gathered ahead of their use.

#include "user_loop/unit_order.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "zero/rank_units.hpp"

namespace sluice::train {
namespace {

using zero::WeightState;

class UnitOrderOfThree : public ::testing::Test {
 protected:
  UnitOrderOfThree() {
    for (int i = 0; i < 3; ++i) owners_.push_back(rank_.unit(layout_));
    prefetcher_ = std::make_unique<zero::Prefetcher>(
        std::vector<zero::ShardedUnit*>{owners_[0].get(), owners_[1].get(), owners_[2].get()},
        std::vector<bool>(3, false), zero::PrefetchLimits{.units_ahead = 1});
    order_ = std::make_unique<UnitOrder>(*prefetcher_);
  }
  // Uses the units; returns those that were begun before their turn came.
  std::vector<std::size_t> ahead_in(const std::vector<std::size_t>& units, Pass pass) {
    std::vector<std::size_t> ahead;
    for (const std::size_t unit : units) {
      if (owners_[unit]->weight_state() != WeightState::sharded) ahead.push_back(unit);
      zero::GatherStall stall;
      order_->enter(pass, {unit}, stall);
      EXPECT_EQ(owners_[unit]->weight_state(), WeightState::gathered);
      order_->leave({unit});
    }
    return ahead;
  }
  std::vector<std::size_t> micro_batch() {
    auto ahead = ahead_in({0, 1, 2, 2, 1, 0}, Pass::training);
    order_->end_micro_batch();
    return ahead;
  }

  const zero::UnitLayout layout_ = zero::test::layout_of("u", 100, 1);
  zero::test::Rank rank_ = zero::test::single();
  std::vector<std::unique_ptr<zero::ShardedUnit>> owners_;
  std::unique_ptr<zero::Prefetcher> prefetcher_;
  std::unique_ptr<UnitOrder> order_;
};

TEST_F(UnitOrderOfThree, IsLearnedFromTheFirstMicroBatch) {
  micro_batch();
  EXPECT_EQ(micro_batch(), (std::vector<std::size_t>{1, 2, 2, 1, 0}));
}

// An evaluation whose caller has left gradients on.
TEST_F(UnitOrderOfThree, StaysKnownAfterForwardsWithoutABackward) {
  micro_batch();
  for (int forward = 0; forward < 3; ++forward) {
    const auto ahead = ahead_in({0, 1, 2}, Pass::training);
    EXPECT_EQ(ahead, (std::vector<std::size_t>{1, 2})) << "forward " << forward;
  }
  EXPECT_EQ(micro_batch(), (std::vector<std::size_t>{1, 2, 2, 1, 0}));
}

TEST_F(UnitOrderOfThree, IsLearnedWithTwoForwardsForABackward) {
  const std::vector<std::size_t> units = {0, 1, 2, 0, 1, 2, 2, 1, 0, 2, 1, 0};
  ahead_in(units, Pass::training);
  order_->end_micro_batch();
  EXPECT_EQ(ahead_in(units, Pass::training).size(), units.size() - 1);
}

TEST_F(UnitOrderOfThree, OfAnEvaluationBeginsWithItsFirstUnit) {
  ahead_in({0, 1, 2}, Pass::evaluation);
  ahead_in({0, 1, 2}, Pass::evaluation);
  EXPECT_EQ(ahead_in({0, 1, 2}, Pass::evaluation), (std::vector<std::size_t>{1, 2}));
}

}  // namespace
}  // namespace sluice::train
