#include "sluice/offload/buffer_ring.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "wait_until_blocked.hpp"

namespace sluice::offload {
namespace {

class BufferRingTest : public ::testing::Test {
 protected:
  MemoryPool pool_{Tier::host, kUnlimited, make_host_source()};
};

TEST_F(BufferRingTest, TakesAllItsMemoryAtOnce) {
  BufferRing ring(pool_, 8192, 3, "tiles");
  EXPECT_EQ(ring.tile_bytes(), 8192U);
  EXPECT_EQ(ring.count(), 3U);
  EXPECT_EQ(pool_.usage().live_bytes, 3U * 8192);
  std::vector<TileLease> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(ring.acquire());
  EXPECT_EQ(pool_.usage().peak_live_bytes, 3U * 8192);
}

TEST_F(BufferRingTest, HandsOutDifferentTilesThatStartAtPages) {
  for (const std::size_t tile_bytes : {100U, 4096U, 12288U}) {
    BufferRing ring(pool_, tile_bytes, 4, "tiles");
    std::vector<TileLease> leases;
    std::set<std::byte*> starts;
    for (int i = 0; i < 4; ++i) {
      leases.push_back(ring.acquire());
      EXPECT_EQ(leases.back().bytes().size(), tile_bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(leases.back().bytes().data()) % kPageBytes, 0U);
      starts.insert(leases.back().bytes().data());
    }
    EXPECT_EQ(starts.size(), 4U);
    EXPECT_FALSE(ring.try_acquire());
  }
}

TEST_F(BufferRingTest, GetsATileBackWhenItsLeaseEnds) {
  BufferRing ring(pool_, 4096, 1, "tile");
  {
    const TileLease lease = ring.acquire();
    EXPECT_TRUE(lease);
    EXPECT_FALSE(ring.try_acquire());
  }
  EXPECT_TRUE(ring.try_acquire());
}

TEST_F(BufferRingTest, MovingALeaseMovesTheTile) {
  BufferRing ring(pool_, 4096, 2, "tiles");
  TileLease first = ring.acquire();
  TileLease second = ring.acquire();
  const std::byte* const tile = first.bytes().data();
  second = std::move(first);  // gives its own tile back
  EXPECT_FALSE(first);        // NOLINT(bugprone-use-after-move): the subject
  EXPECT_EQ(second.bytes().data(), tile);
  const TileLease third(std::move(second));
  EXPECT_TRUE(ring.try_acquire());
  EXPECT_EQ(third.bytes().data(), tile);
}

TEST_F(BufferRingTest, BlocksUntilATileIsFree) {
  BufferRing ring(pool_, 4096, 1, "tile");
  TileLease lease = ring.acquire();
  std::atomic<long> waiter{0};
  std::atomic<bool> acquired{false};
  std::thread thread([&] {
    waiter = test::thread_id();
    const TileLease mine = ring.acquire();
    acquired = true;
  });
  while (waiter.load() == 0) std::this_thread::yield();
  test::wait_until_blocked(waiter.load());
  EXPECT_FALSE(acquired.load());
  lease = TileLease();
  thread.join();
  EXPECT_TRUE(acquired.load());
}

TEST_F(BufferRingTest, GivesEachTileToOneThreadAtATime) {
  BufferRing ring(pool_, 4096, 3, "tiles");
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&ring, i] {
      for (int repeat = 0; repeat < 300; ++repeat) {
        const TileLease lease = ring.acquire();
        // Plain writes: two owners at once would be a race that TSan reports.
        lease.bytes()[0] = static_cast<std::byte>(i);
        std::this_thread::yield();
        ASSERT_EQ(lease.bytes()[0], static_cast<std::byte>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(BufferRingTest, NeedsTilesAndMemory) {
  EXPECT_THROW(BufferRing(pool_, 4096, 0, "none"), InvalidArgument);
  EXPECT_THROW(BufferRing(pool_, 0, 3, "none"), InvalidArgument);
  EXPECT_THROW(BufferRing(pool_, 4096, ~std::size_t{0}, "too many"), InvalidArgument);
  MemoryPool small(Tier::host, 2 * 4096, make_host_source());
  EXPECT_THROW(BufferRing(small, 4096, 3, "too many"), OutOfMemory);
  EXPECT_EQ(small.usage().live_bytes, 0U);  // the tiles it had got are free again
}

}  // namespace
}  // namespace sluice::offload
