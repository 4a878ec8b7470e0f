// ReadAhead: which states are read before their gradients exist, and when.

#include "update/read_ahead.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice::train {
namespace {

using offload::BufferRing;
using offload::MemoryPool;
using offload::Tier;
using ::testing::ElementsAre;

using Tile = std::pair<std::size_t, std::size_t>;  // unit, index

constexpr std::uint64_t kTileCount = 10;

// Four units have two tiles, none, one and a half, and three; the ring has three tiles.
class ReadAheadTest : public ::testing::Test {
 protected:
  // Reads end in end_reads().
  offload::Tickets begin(const TileRange& range) {
    if (broken_) throw Error("the drive is gone");
    read_.emplace_back(range.unit, range.begin / kTileCount);
    counts_.push_back(range.count);
    offload::Tickets tickets;
    tickets.push_back(sources_.emplace_back().ticket());
    return tickets;
  }
  bool take(std::size_t unit, std::size_t tile) {
    std::optional<ReadAhead::Tile> taken = ahead_.take({unit, tile * kTileCount, kTileCount});
    if (!taken) return false;
    EXPECT_EQ(taken->reads.size(), 1U);
    used_.push_back(std::move(*taken));
    return true;
  }
  void end_reads() {
    for (TicketSource& source : sources_) source.complete();
    sources_.clear();
  }
  void TearDown() override { end_reads(); }
  // Tiles whose reads have begun since the last call.
  std::vector<Tile> started() {
    ahead_.start();
    return std::exchange(read_, {});
  }

  MemoryPool pool_{Tier::host, offload::kUnlimited, offload::make_host_source()};
  BufferRing ring_{pool_, 4096, 3, "tiles"};
  std::vector<Tile> read_;
  std::vector<std::uint64_t> counts_;
  std::vector<TicketSource> sources_;
  bool broken_ = false;
  ReadAhead ahead_{
      ring_, {20, 0, 15, 30}, kTileCount, [this](const TileRange& range, std::span<std::byte>) {
        return begin(range);
      }};
  std::vector<ReadAhead::Tile> used_;
};

TEST_F(ReadAheadTest, ReadsTheFirstUnitsAsFarAsThereAreTiles) {
  EXPECT_THAT(started(), ElementsAre());
  ahead_.expect_updates();
  EXPECT_THAT(started(), ElementsAre(Tile(0, 0), Tile(0, 1), Tile(2, 0)));
  EXPECT_THAT(started(), ElementsAre());
  end_reads();
  ahead_.begin_work(0, true);
  EXPECT_TRUE(take(0, 0));
  EXPECT_THAT(started(), ElementsAre());  // the taken tile is still in use
  used_.clear();
  EXPECT_THAT(started(), ElementsAre(Tile(2, 1)));
  EXPECT_THAT(counts_, ElementsAre(10, 10, 10, 5));
  EXPECT_TRUE(take(0, 1));
  EXPECT_FALSE(take(0, 1));
}

TEST_F(ReadAheadTest, ReadsNothingOfAUnitThatIsAtWorkOrOfThoseAfterIt) {
  ahead_.expect_updates();
  ahead_.begin_work(2, false);
  EXPECT_THAT(started(), ElementsAre(Tile(0, 0), Tile(0, 1)));
  ahead_.begin_work(2, false);
  ahead_.end_work(2);
  EXPECT_THAT(started(), ElementsAre());
  ahead_.end_work(2);
  EXPECT_THAT(started(), ElementsAre(Tile(2, 0)));
}

TEST_F(ReadAheadTest, ReadsAUnitOnceForEachTimeItIsExpected) {
  ahead_.expect_updates();
  for (const std::size_t unit : {3, 2, 1, 0}) ahead_.begin_work(unit, true);
  for (const std::size_t unit : {0, 1, 2, 3}) ahead_.end_work(unit);
  EXPECT_THAT(started(), ElementsAre());
  ahead_.begin_work(0, true);  // an update of this step, while the next step is expected already
  ahead_.expect_updates();
  EXPECT_THAT(started(), ElementsAre());
  ahead_.end_work(0);
  EXPECT_THAT(started(), ElementsAre(Tile(0, 0), Tile(0, 1), Tile(2, 0)));
}

TEST_F(ReadAheadTest, KeepsWhatWasReadForAStepThatWasSkipped) {
  ahead_.expect_updates();
  EXPECT_EQ(started().size(), 3U);
  ahead_.expect_updates();
  EXPECT_THAT(started(), ElementsAre());
  end_reads();
  EXPECT_TRUE(take(0, 0));
  EXPECT_TRUE(take(0, 1));
  EXPECT_TRUE(take(2, 0));
}

TEST_F(ReadAheadTest, ForgetsAUnitThatIsWrittenAnew) {
  ahead_.expect_updates();
  EXPECT_EQ(started().size(), 3U);
  end_reads();
  ahead_.forget(0);
  EXPECT_FALSE(take(0, 0));
  EXPECT_TRUE(take(2, 0));
  EXPECT_THAT(started(), ElementsAre(Tile(0, 0), Tile(0, 1)));
}

TEST_F(ReadAheadTest, LeavesErrorsToTheUpdate) {
  broken_ = true;
  ahead_.expect_updates();
  EXPECT_THAT(started(), ElementsAre());
  EXPECT_FALSE(take(0, 0));
  broken_ = false;
  EXPECT_EQ(started().size(), 3U);
}

}  // namespace
}  // namespace sluice::train
