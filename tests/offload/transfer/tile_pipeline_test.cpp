#include "sluice/offload/tile_pipeline.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "captured_log.hpp"
#include "fake_drive.hpp"
#include "sluice/base/error.hpp"
#include "wait_until_blocked.hpp"

namespace sluice::offload {
namespace {

using sluice::test::CapturedLog;
using sluice::test::thread_id;
using sluice::test::wait_until_blocked;
using test::DriveOrder;
using test::FakeDrive;

constexpr std::size_t kTileBytes = 4096;
constexpr std::size_t kValues = kTileBytes / sizeof(std::uint32_t);
using Values = std::array<std::uint32_t, kValues>;

template <typename... T>
Tickets tickets_of(T&&... ticket) {
  Tickets tickets;
  (tickets.push_back(std::forward<T>(ticket)), ...);
  return tickets;
}

std::span<std::uint32_t> values_of(std::span<std::byte> tile) {
  return {reinterpret_cast<std::uint32_t*>(tile.data()), tile.size() / sizeof(std::uint32_t)};
}

class TilePipelineTest : public ::testing::Test {
 protected:
  BufferRing& ring(std::size_t tiles) {
    ring_.emplace(pool_, kTileBytes, tiles, "tiles");
    return *ring_;
  }
  // Notes which jobs ended, in which order, and with what.
  std::function<void(std::exception_ptr)> notes_end(int job) {
    return [this, job](const std::exception_ptr& error) {
      ended_.push_back(job);
      if (!error) return;
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& thrown) {
        errors_.emplace_back(job, thrown.what());
      }
    };
  }
  static std::vector<int> in_order(int count) {
    std::vector<int> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }

  MemoryPool pool_{Tier::host, kUnlimited, make_host_source()};
  std::optional<BufferRing> ring_;
  std::vector<int> ended_;
  std::vector<std::pair<int, std::string>> errors_;
};

// `count` jobs whose halves are read and written by two transfers each; the result is 3 x + job.
class Transform {
 public:
  explicit Transform(std::size_t count) : from_(count), to_(count) {
    std::mt19937 random(7);
    for (Values& values : from_) {
      for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
    }
  }

  TileJob job(std::size_t index, FakeDrive& drive) {
    TileJob job;
    job.begin_read = [this, index, &drive](std::span<std::byte> tile) {
      const auto half = [this, index, tile](std::size_t at) {
        std::memcpy(tile.data() + at, bytes(from_, index) + at, kTileBytes / 2);
      };
      return tickets_of(drive.begin([half] { half(0); }),
                        drive.begin([half] { half(kTileBytes / 2); }));
    };
    job.compute = [this, index](std::span<std::byte> tile) {
      computed_.push_back(static_cast<int>(index));
      for (std::uint32_t& value : values_of(tile)) {
        value = 3 * value + static_cast<std::uint32_t>(index);
      }
    };
    job.begin_write = [this, index, &drive](std::span<std::byte> tile) {
      const auto half = [this, index, tile](std::size_t at) {
        std::memcpy(bytes(to_, index) + at, tile.data() + at, kTileBytes / 2);
      };
      return tickets_of(drive.begin([half] { half(0); }),
                        drive.begin([half] { half(kTileBytes / 2); }));
    };
    return job;
  }

  void expect_done() const {
    for (std::size_t i = 0; i < from_.size(); ++i) {
      for (std::size_t v = 0; v < kValues; ++v) {
        ASSERT_EQ(to_[i][v], 3 * from_[i][v] + static_cast<std::uint32_t>(i)) << i << " " << v;
      }
    }
  }
  const std::vector<int>& computed() const { return computed_; }

 private:
  static std::byte* bytes(std::vector<Values>& all, std::size_t index) {
    return reinterpret_cast<std::byte*>(all[index].data());
  }
  std::vector<Values> from_;
  std::vector<Values> to_;
  std::vector<int> computed_;
};

TEST_F(TilePipelineTest, GivesTheSameResultInWhateverOrderTransfersEnd) {
  constexpr int kJobs = 40;
  for (unsigned seed = 0; seed < 8; ++seed) {
    Transform transform(kJobs);
    ended_.clear();
    FakeDrive drive(DriveOrder::random, 1, seed);
    TilePipeline pipeline(ring(3 + seed % 4));
    for (int i = 0; i < kJobs; ++i) {
      TileJob job = transform.job(static_cast<std::size_t>(i), drive);
      job.done = notes_end(i);
      pipeline.push(std::move(job));
    }
    pipeline.drain();
    transform.expect_done();
    EXPECT_EQ(transform.computed(), in_order(kJobs));
    EXPECT_EQ(ended_, in_order(kJobs));
    EXPECT_TRUE(errors_.empty());
  }
}

TEST_F(TilePipelineTest, KeepsATransferInEveryTileWheneverItWaits) {
  constexpr std::size_t kTiles = 3;
  FakeDrive drive(DriveOrder::as_begun, kTiles);  // with fewer in flight, nothing would go on
  TilePipeline pipeline(ring(kTiles));
  for (int i = 0; i < 30; ++i) {
    TileJob job;
    job.begin_read = [&](std::span<std::byte>) { return tickets_of(drive.begin([] {})); };
    job.begin_write = job.begin_read;
    job.done = notes_end(i);
    pipeline.push(std::move(job));
  }
  drive.release();
  pipeline.drain();
  EXPECT_EQ(ended_, in_order(30));
  EXPECT_EQ(drive.most_in_flight(), kTiles);
}

TEST_F(TilePipelineTest, StartsReadsWithoutWaitingWhileTilesAreFree) {
  std::vector<TicketSource> reads(4);
  std::size_t begun = 0;
  TilePipeline pipeline(ring(4));
  for (int i = 0; i < 4; ++i) {
    TileJob job;
    job.begin_read = [&](std::span<std::byte>) { return tickets_of(reads[begun++].ticket()); };
    job.done = notes_end(i);
    pipeline.push(std::move(job));  // nothing completes: waiting would never end
  }
  EXPECT_EQ(begun, 4U);
  EXPECT_TRUE(ended_.empty());
  for (TicketSource& read : reads) read.complete();
  pipeline.drain();
  EXPECT_EQ(ended_, in_order(4));
}

TEST_F(TilePipelineTest, EndsJobsWhoseTransfersHaveEndedWithoutWaiting) {
  TicketSource last;
  TilePipeline pipeline(ring(3));
  TileJob quick;
  quick.begin_read = [](std::span<std::byte>) { return Tickets(); };
  quick.done = notes_end(0);
  pipeline.push(std::move(quick));
  EXPECT_EQ(ended_, in_order(1));
  TileJob slow;
  slow.begin_write = [&](std::span<std::byte>) { return tickets_of(last.ticket()); };
  slow.done = notes_end(1);
  pipeline.push(std::move(slow));
  EXPECT_EQ(ended_, in_order(1));
  last.complete();
  EXPECT_TRUE(pipeline.step());
  EXPECT_EQ(ended_, in_order(2));
  EXPECT_FALSE(pipeline.step());
}

TEST_F(TilePipelineTest, WorksInATileOfTheCaller) {
  BufferRing other(pool_, kTileBytes, 1, "another tile");
  TicketSource written;
  TilePipeline pipeline(ring(3));
  std::vector<TicketSource> reads(3);
  for (TicketSource& read : reads) {  // every tile of its own is out
    TileJob job;
    job.begin_read = [&](std::span<std::byte>) { return tickets_of(read.ticket()); };
    pipeline.push(std::move(job));
  }
  TileLease lease = other.acquire();
  std::byte* const at = lease.bytes().data();
  TileJob job;
  job.compute = [&](std::span<std::byte> tile) { EXPECT_EQ(tile.data(), at); };
  job.begin_write = [&](std::span<std::byte> tile) {
    EXPECT_EQ(tile.data(), at);
    return tickets_of(written.ticket());
  };
  job.done = notes_end(0);
  pipeline.push(std::move(job), std::move(lease));  // does not wait for a tile
  EXPECT_FALSE(other.try_acquire());
  for (TicketSource& read : reads) read.complete();
  written.complete();
  pipeline.drain();
  EXPECT_TRUE(other.try_acquire());
  EXPECT_EQ(ended_, in_order(1));
  EXPECT_TRUE(errors_.empty());
}

TEST_F(TilePipelineTest, TakesJobsWithoutAnyStage) {
  TilePipeline pipeline(ring(3));
  for (int i = 0; i < 10; ++i) pipeline.push(TileJob{});
  pipeline.drain();
  EXPECT_FALSE(pipeline.step());
}

enum class Stage { begin_read, read, compute, begin_write, write };

class FailingStage : public TilePipelineTest, public ::testing::WithParamInterface<Stage> {
 protected:
  void fail_in(Stage stage, int job) const {
    if (job == 3 && stage == GetParam()) throw std::runtime_error("broken");
  }
  TileJob make_job(int index, FakeDrive& drive) {
    TileJob job;
    job.begin_read = [this, index, &drive](std::span<std::byte>) {
      // The transfer that was begun before the stage throws is waited for by its ticket.
      Tickets tickets = tickets_of(drive.begin([this, index] { fail_in(Stage::read, index); }));
      fail_in(Stage::begin_read, index);
      return tickets;
    };
    job.compute = [this, index](std::span<std::byte>) {
      computed_.push_back(index);
      fail_in(Stage::compute, index);
    };
    job.begin_write = [this, index, &drive](std::span<std::byte>) {
      written_.push_back(index);
      fail_in(Stage::begin_write, index);
      return tickets_of(drive.begin([this, index] { fail_in(Stage::write, index); }));
    };
    job.done = notes_end(index);
    return job;
  }
  std::vector<int> computed_;
  std::vector<int> written_;
};

INSTANTIATE_TEST_SUITE_P(Stages, FailingStage,
                         ::testing::Values(Stage::begin_read, Stage::read, Stage::compute,
                                           Stage::begin_write, Stage::write));

TEST_P(FailingStage, EndsOneJobWithTheErrorAndLeavesTheOthersAlone) {
  constexpr int kJobs = 10;
  FakeDrive drive(DriveOrder::random, 1);
  TilePipeline pipeline(ring(3));
  for (int i = 0; i < kJobs; ++i) EXPECT_NO_THROW(pipeline.push(make_job(i, drive)));
  EXPECT_NO_THROW(pipeline.drain());

  EXPECT_EQ(ended_, in_order(kJobs));
  ASSERT_EQ(errors_.size(), 1U);
  EXPECT_EQ(errors_[0], std::make_pair(3, std::string("broken")));
  const auto without_3 = [] { return std::vector<int>{0, 1, 2, 4, 5, 6, 7, 8, 9}; };
  EXPECT_EQ(computed_, GetParam() < Stage::compute ? without_3() : in_order(kJobs));
  EXPECT_EQ(written_, GetParam() < Stage::begin_write ? without_3() : in_order(kJobs));
  // Every tile is back.
  std::vector<TileLease> leases;
  for (std::size_t i = 0; i < ring_->count(); ++i) {
    auto lease = ring_->try_acquire();
    ASSERT_TRUE(lease);
    leases.push_back(std::move(*lease));
  }
}

TEST_F(TilePipelineTest, WaitsForAllTransfersOfAJobBeforeItReportsAnError) {
  bool other_ended = false;
  bool other_had_ended = false;
  FakeDrive drive(DriveOrder::as_begun, 1);
  TilePipeline pipeline(ring(3));
  TileJob job;
  job.begin_read = [&, driving = thread_id()](std::span<std::byte>) {
    return tickets_of(drive.begin([] { throw std::runtime_error("first"); }),
                      drive.begin([&other_ended, driving] {
                        wait_until_blocked(driving);
                        other_ended = true;
                      }));
  };
  job.done = [&](const std::exception_ptr& error) {
    other_had_ended = other_ended;
    EXPECT_TRUE(error);
  };
  pipeline.push(std::move(job));
  pipeline.drain();
  EXPECT_TRUE(other_had_ended);
}

TEST_F(TilePipelineTest, FreesTheTileBeforeItSaysThatTheJobHasEnded) {
  BufferRing& tiles = ring(3);
  TilePipeline pipeline(tiles);
  int free_tiles = 0;
  TileJob job;
  job.done = [&](const std::exception_ptr&) {
    std::vector<TileLease> leases;
    while (auto lease = tiles.try_acquire()) leases.push_back(std::move(*lease));
    free_tiles = static_cast<int>(leases.size());
  };
  pipeline.push(std::move(job));
  pipeline.drain();
  EXPECT_EQ(free_tiles, 3);
}

TEST_F(TilePipelineTest, LogsWhatTheEndOfAJobThrows) {
  const CapturedLog log;
  TilePipeline pipeline(ring(3));
  TileJob job;
  job.done = [](const std::exception_ptr&) { throw std::runtime_error("not allowed"); };
  EXPECT_NO_THROW(pipeline.push(std::move(job)));
  EXPECT_TRUE(log.contains("not allowed"));
}

TEST_F(TilePipelineTest, DrainsWhenItIsDestroyed) {
  FakeDrive drive(DriveOrder::random, 1);
  Transform transform(5);
  {
    TilePipeline pipeline(ring(3));
    for (std::size_t i = 0; i < 5; ++i) pipeline.push(transform.job(i, drive));
  }
  transform.expect_done();
}

TEST_F(TilePipelineTest, NeedsThreeTiles) {
  EXPECT_THROW(TilePipeline{ring(2)}, InvalidArgument);
}

}  // namespace
}  // namespace sluice::offload
