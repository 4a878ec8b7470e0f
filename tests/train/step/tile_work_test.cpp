// UnitCountdown: when a unit's weights and states are current, and who is told of an error.

#include "update/tile_work.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

using test::message_of;

std::exception_ptr error(const std::string& text) {
  return std::make_exception_ptr(Error(text));
}

// One unit with two tiles.
class TileWorkTest : public ::testing::Test {
 protected:
  TileWorkTest() {
    TileWork work;
    work.weights_current = [this](const std::exception_ptr& error) {
      weights_ = message_of(error);
    };
    work.finish = [this] { finished_ = true; };
    work.ended = [this](const std::exception_ptr&) { ended_ = true; };
    countdown_ = std::make_shared<UnitCountdown>(2, std::move(work));
    ticket_ = countdown_->ticket();
    first_.emplace(countdown_);
    second_.emplace(countdown_);
  }
  std::string ticket_error() {
    EXPECT_TRUE(ticket_.done());
    try {
      ticket_.finish();
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "";
  }

  std::optional<std::string> weights_;  // message of the error; empty: none
  bool finished_ = false;
  bool ended_ = false;
  std::shared_ptr<UnitCountdown> countdown_;
  Ticket ticket_;
  std::optional<TileEnd> first_, second_;
};

TEST_F(TileWorkTest, WeightsAreCurrentBeforeStatesAreWritten) {
  second_->weights_current();
  EXPECT_FALSE(weights_);
  first_->weights_current();
  EXPECT_EQ(weights_, "");
  EXPECT_FALSE(ticket_.done());
  second_->end(nullptr);
  EXPECT_FALSE(finished_);
  first_->end(nullptr);
  EXPECT_TRUE(finished_ && ended_);
  EXPECT_EQ(ticket_error(), "");
}

TEST_F(TileWorkTest, WeightsThatLeaveAreCurrentWithTheLastEnd) {
  first_->end(nullptr);
  EXPECT_FALSE(weights_);
  second_->end(nullptr);
  EXPECT_EQ(weights_, "");
  EXPECT_EQ(ticket_error(), "");
}

TEST_F(TileWorkTest, AFailedComputationIsToldWithTheWeights) {
  first_->end(error("a read failed"));
  second_->weights_current();
  EXPECT_EQ(weights_, "a read failed");
  second_->end(error("so did a write"));
  EXPECT_FALSE(finished_);
  EXPECT_TRUE(ended_);
  EXPECT_EQ(ticket_error(), "");
}

TEST_F(TileWorkTest, AFailedWriteIsToldByTheTicket) {
  first_->weights_current();
  second_->weights_current();
  first_->end(error("the drive is full"));
  EXPECT_EQ(weights_, "");
  second_->end(nullptr);
  EXPECT_FALSE(finished_);
  EXPECT_TRUE(ended_);
  EXPECT_EQ(ticket_error(), "the drive is full");
}

}  // namespace
}  // namespace sluice::train
