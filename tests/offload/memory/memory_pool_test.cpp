#include "sluice/offload/memory_pool.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "captured_log.hpp"
#include "counting_source.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {
namespace {

constexpr std::size_t kPage = 4096;

using test::CountingSource;
using test::SourceCounts;
using ::testing::HasSubstr;

// A pool over a counted host source.
struct CountedPool {
  explicit CountedPool(std::uint64_t limit_bytes, Tier tier = Tier::host,
                       MemoryPool* parent = nullptr)
      : pool(tier, limit_bytes, std::make_unique<CountingSource>(counts), parent) {}
  SourceCounts counts;
  MemoryPool pool;
};

std::optional<OutOfMemory> error_of_allocating(MemoryPool& pool, std::size_t size_bytes) {
  try {
    pool.allocate(size_bytes, "a test block");
  } catch (const OutOfMemory& error) {
    return error;
  }
  return std::nullopt;
}

TEST(PoolBytes, RoundsToCacheLinesThenToPages) {
  EXPECT_EQ(pool_bytes(0), 0U);
  EXPECT_EQ(pool_bytes(1), 64U);
  EXPECT_EQ(pool_bytes(64), 64U);
  EXPECT_EQ(pool_bytes(65), 128U);
  EXPECT_EQ(pool_bytes(4095), 4096U);
  EXPECT_EQ(pool_bytes(4096), 4096U);
  EXPECT_EQ(pool_bytes(4097), 8192U);
  EXPECT_THROW(pool_bytes(~0ULL), InvalidArgument);
}

TEST(MemoryPool, CountsWhatItGivesOut) {
  CountedPool counted(kMiB);
  {
    const Buffer small = counted.pool.allocate(100, "small");
    const Buffer large = counted.pool.allocate(5000, "large");
    EXPECT_EQ(small.size_bytes(), 100U);
    EXPECT_EQ(small.bytes().size(), 100U);
    const PoolUsage usage = counted.pool.usage();
    EXPECT_EQ(usage.limit_bytes, kMiB);
    EXPECT_EQ(usage.live_bytes, pool_bytes(100) + pool_bytes(5000));
    EXPECT_EQ(usage.held_bytes, usage.live_bytes);
    EXPECT_EQ(counted.counts.outside_bytes.load(), usage.held_bytes);
  }
  const PoolUsage usage = counted.pool.usage();
  EXPECT_EQ(usage.live_bytes, 0U);
  EXPECT_EQ(usage.peak_live_bytes, pool_bytes(100) + pool_bytes(5000));
  EXPECT_EQ(usage.held_bytes, usage.peak_live_bytes);  // kept for reuse
}

TEST(MemoryPool, GivesAnEmptyBufferForNoBytes) {
  CountedPool counted(0);
  const Buffer buffer = counted.pool.allocate(0, "nothing");
  EXPECT_FALSE(buffer);
  EXPECT_EQ(counted.pool.allocate_raw(0, "nothing"), nullptr);
  counted.pool.free_raw(nullptr, 0);
  EXPECT_EQ(counted.counts.allocations.load(), 0U);
}

TEST(MemoryPool, ReusesABlockOfExactlyThatSize) {
  CountedPool counted(kMiB);
  std::byte* const first = counted.pool.allocate(8192, "first").data();
  EXPECT_EQ(counted.pool.allocate(8192, "again").data(), first);
  EXPECT_EQ(counted.counts.allocations.load(), 1U);
  EXPECT_NE(counted.pool.allocate(4096, "smaller").data(), first);
  EXPECT_EQ(counted.counts.allocations.load(), 2U);
}

TEST(MemoryPool, AllocatesNothingInAStepThatRepeats) {
  CountedPool counted(kMiB);
  const std::array<std::size_t, 4> sizes = {64, 4096, 100000, 4096};
  for (int step = 0; step < 3; ++step) {
    std::vector<Buffer> buffers;
    buffers.reserve(sizes.size());
    for (const std::size_t size : sizes) buffers.push_back(counted.pool.allocate(size, "step"));
    EXPECT_EQ(counted.counts.allocations.load(), sizes.size());
  }
}

TEST(MemoryPool, FillsItsLimitToTheLastByte) {
  CountedPool counted(3 * kPage);
  std::vector<Buffer> buffers;
  buffers.reserve(3);
  for (int i = 0; i < 3; ++i) buffers.push_back(counted.pool.allocate(4096, "page"));
  const auto error = error_of_allocating(counted.pool, 1);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->tier(), "host");
  EXPECT_EQ(error->requested_bytes(), 64U);
  EXPECT_EQ(error->available_bytes(), 0U);
  EXPECT_THAT(error->what(), HasSubstr("a test block"));
}

TEST(MemoryPool, GivesKeptBlocksBackBeforeItRefuses) {
  CountedPool counted(4 * kPage);
  { const Buffer kept = counted.pool.allocate(3 * kPage, "kept"); }
  EXPECT_EQ(counted.pool.usage().held_bytes, 3 * kPage);
  const Buffer other = counted.pool.allocate(2 * kPage, "other");
  EXPECT_EQ(counted.pool.usage().held_bytes, 2 * kPage);
  EXPECT_LE(counted.counts.most_bytes.load(), 4 * kPage);
}

TEST(MemoryPool, GivesBackOnlyWhatMakesRoom) {
  CountedPool counted(16 * kPage);
  {
    const Buffer a = counted.pool.allocate(1 * kPage, "a"),
                 b = counted.pool.allocate(2 * kPage, "b"),
                 c = counted.pool.allocate(8 * kPage, "c");
  }
  // 5 pages are free, 7 are asked for: the block of 2 pages is the smallest that is enough.
  const Buffer d = counted.pool.allocate(7 * kPage, "d");
  EXPECT_EQ(counted.pool.usage().held_bytes, 16 * kPage);
  const std::uint64_t before = counted.counts.allocations.load();
  const Buffer c = counted.pool.allocate(8 * kPage, "c");
  const Buffer a = counted.pool.allocate(1 * kPage, "a");
  EXPECT_EQ(counted.counts.allocations.load(), before);
}

TEST(MemoryPool, ReportsWhatCouldBeHadWhenKeptBlocksAreCountedAsFree) {
  CountedPool counted(4 * kPage);
  { const Buffer kept = counted.pool.allocate(3 * kPage, "kept"); }
  const Buffer live = counted.pool.allocate(4096, "live");
  const auto error = error_of_allocating(counted.pool, 4 * kPage);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->requested_bytes(), 4 * kPage);
  EXPECT_EQ(error->available_bytes(), 3 * kPage);
}

TEST(MemoryPool, TrimGivesBackAllThatIsKeptAndNothingElse) {
  CountedPool counted(kUnlimited);
  Buffer live = counted.pool.allocate(8192, "live");
  live.bytes()[8191] = std::byte{42};
  {
    const Buffer kept = counted.pool.allocate(200000, "kept"),
                 tiny = counted.pool.allocate(1, "tiny");
  }
  counted.pool.trim();
  EXPECT_EQ(counted.pool.usage().held_bytes, 8192U);
  EXPECT_EQ(counted.counts.outside_bytes.load(), 8192U);
  EXPECT_EQ(live.bytes()[8191], std::byte{42});
}

TEST(MemoryPool, ResetPeakStartsFromWhatIsLive) {
  CountedPool counted(kUnlimited);
  const Buffer live = counted.pool.allocate(4096, "live");
  { const Buffer gone = counted.pool.allocate(8192, "gone"); }
  EXPECT_EQ(counted.pool.usage().peak_live_bytes, 12288U);
  counted.pool.reset_peak();
  EXPECT_EQ(counted.pool.usage().peak_live_bytes, 4096U);
}

TEST(MemoryPool, TriesAgainWithoutWhatItKeepsWhenTheSystemHasNoMore) {
  CountedPool counted(kUnlimited);
  { const Buffer kept = counted.pool.allocate(8192, "kept"); }
  counted.counts.failures_left = 1;
  const Buffer buffer = counted.pool.allocate(4096, "after a trim");
  EXPECT_TRUE(buffer);
  EXPECT_EQ(counted.pool.usage().held_bytes, 4096U);
}

TEST(MemoryPool, SaysWhenTheSystemHasNoMore) {
  CountedPool counted(kMiB);
  counted.counts.failures_left = 2;
  const auto error = error_of_allocating(counted.pool, 4096);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("the system has no more memory"));
  EXPECT_EQ(error->requested_bytes(), 4096U);
  // The failed request holds nothing.
  EXPECT_EQ(counted.pool.usage().live_bytes, 0U);
  EXPECT_EQ(counted.pool.usage().held_bytes, 0U);
  EXPECT_TRUE(counted.pool.allocate(kMiB, "all of it"));
}

TEST(ChildPool, CountsInTheParent) {
  CountedPool host(8 * kPage);
  CountedPool pinned(kUnlimited, Tier::pinned, &host.pool);
  {
    const Buffer block = pinned.pool.allocate(3 * kPage, "pinned");
    EXPECT_EQ(host.pool.usage().live_bytes, 3 * kPage);
    EXPECT_EQ(host.pool.usage().held_bytes, 3 * kPage);
  }
  // Kept by the child, so still taken from the parent.
  EXPECT_EQ(host.pool.usage().live_bytes, 3 * kPage);
  pinned.pool.trim();
  EXPECT_EQ(host.pool.usage().live_bytes, 0U);
  EXPECT_EQ(host.pool.usage().held_bytes, 0U);
  EXPECT_EQ(host.pool.usage().peak_live_bytes, 3 * kPage);
}

TEST(ChildPool, IsRefusedByTheParentsBudget) {
  CountedPool host(8 * kPage);
  CountedPool pinned(kUnlimited, Tier::pinned, &host.pool);
  const Buffer pageable = host.pool.allocate(6 * kPage, "pageable");
  const auto error = error_of_allocating(pinned.pool, 3 * kPage);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->tier(), "host");
  EXPECT_EQ(error->requested_bytes(), 3 * kPage);
  EXPECT_EQ(error->available_bytes(), 2 * kPage);
  EXPECT_THAT(error->what(), HasSubstr("tier pinned counts in this budget"));
  EXPECT_EQ(host.pool.usage().live_bytes, 6 * kPage);
  EXPECT_EQ(pinned.pool.usage().live_bytes, 0U);
}

TEST(ChildPool, IsRefusedByItsOwnBudgetFirst) {
  CountedPool host(8 * kPage);
  CountedPool pinned(2 * kPage, Tier::pinned, &host.pool);
  const auto error = error_of_allocating(pinned.pool, 3 * kPage);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->tier(), "pinned");
  EXPECT_EQ(error->available_bytes(), 2 * kPage);
}

TEST(ChildPool, MakesTheParentGiveBackWhatItKeeps) {
  CountedPool host(4 * kPage);
  CountedPool pinned(kUnlimited, Tier::pinned, &host.pool);
  { const Buffer kept = host.pool.allocate(3 * kPage, "kept"); }
  const Buffer block = pinned.pool.allocate(4 * kPage, "pinned");
  EXPECT_EQ(host.counts.outside_bytes.load(), 0U);
  EXPECT_EQ(host.pool.usage().held_bytes, 4 * kPage);
}

TEST(ChildPool, GivesBackWhatItKeepsWhenTheParentHasNoRoom) {
  CountedPool host(4 * kPage);
  CountedPool pinned(kUnlimited, Tier::pinned, &host.pool);
  { const Buffer kept = pinned.pool.allocate(3 * kPage, "kept"); }
  const Buffer block = pinned.pool.allocate(2 * kPage, "pinned");
  EXPECT_EQ(pinned.pool.usage().held_bytes, 2 * kPage);
  EXPECT_EQ(host.pool.usage().held_bytes, 2 * kPage);
}

TEST(ChildPool, ReturnsTheRoomWhenItsSourceFails) {
  CountedPool host(4 * kPage);
  CountedPool pinned(kUnlimited, Tier::pinned, &host.pool);
  pinned.counts.failures_left = 2;
  EXPECT_THROW(pinned.pool.allocate(4096, "pinned"), OutOfMemory);
  EXPECT_EQ(host.pool.usage().live_bytes, 0U);
  EXPECT_EQ(host.pool.usage().held_bytes, 0U);
}

// The first and the last bytes of a block, where its neighbours would reach.
constexpr std::size_t kEndBytes = 32;

void mark(const Buffer& block, int pattern) {
  std::memset(block.data(), pattern, kEndBytes);
  std::memset(block.data() + block.size_bytes() - kEndBytes, pattern, kEndBytes);
}
bool is_marked(const Buffer& block, int pattern) {
  const auto all = [&](std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](std::byte b) { return b == static_cast<std::byte>(pattern); });
  };
  return all(block.bytes().first(kEndBytes)) && all(block.bytes().last(kEndBytes));
}

// Allocates and frees at random for a while; a block is marked, and must still be when it is freed.
// Returns how many requests were refused.
int hammer(MemoryPool& pool, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::pair<Buffer, int>> blocks;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    if (!blocks.empty() && random() % 2 == 0) {
      const std::size_t at = random() % blocks.size();
      std::swap(blocks[at], blocks.back());
      EXPECT_TRUE(is_marked(blocks.back().first, blocks.back().second));
      blocks.pop_back();
    } else {
      const std::array<std::size_t, 6> sizes = {64, 1000, 4096, 8192, 70000, 130000};
      try {
        Buffer buffer = pool.allocate(sizes[random() % sizes.size()], "hammer");
        const int pattern = static_cast<int>(random() % 256);
        mark(buffer, pattern);
        blocks.emplace_back(std::move(buffer), pattern);
      } catch (const OutOfMemory& error) {
        EXPECT_GT(error.requested_bytes(), error.available_bytes());
        ++refused;
      }
    }
    const PoolUsage usage = pool.usage();
    EXPECT_LE(usage.live_bytes, usage.held_bytes);
    EXPECT_LE(usage.held_bytes, usage.limit_bytes);
  }
  return refused;
}

TEST(MemoryPool, NeverExceedsItsLimitUnderManyThreads) {
  constexpr std::uint64_t kLimit = 512 * kKiB;
  CountedPool counted(kLimit);
  std::vector<std::thread> threads;
  std::array<int, 4> refused{};
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { refused[i] = hammer(counted.pool, i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(counted.counts.most_bytes.load(), kLimit);
  EXPECT_GT(refused[0] + refused[1] + refused[2] + refused[3], 0);  // the limit was reached
  EXPECT_EQ(counted.pool.usage().live_bytes, 0U);
  counted.pool.trim();
  EXPECT_EQ(counted.counts.outside_bytes.load(), 0U);
}

TEST(ChildPool, NeverExceedsTheParentsLimitUnderManyThreads) {
  constexpr std::uint64_t kLimit = 512 * kKiB;
  SourceCounts counts;  // of both pools
  MemoryPool host(Tier::host, kLimit, std::make_unique<CountingSource>(counts));
  MemoryPool pinned(Tier::pinned, kLimit / 2, std::make_unique<CountingSource>(counts), &host);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { hammer(i % 2 == 0 ? host : pinned, i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(counts.most_bytes.load(), kLimit);
  EXPECT_EQ(pinned.usage().live_bytes, 0U);
  pinned.trim();
  EXPECT_EQ(host.usage().live_bytes, 0U);
  host.trim();
  EXPECT_EQ(counts.outside_bytes.load(), 0U);
}

// A block that outlives its pool, from memory that no pool owns.
class StaticSource final : public MemorySource {
 public:
  void* allocate(std::size_t) override { return block; }
  void free(void*, std::size_t) noexcept override {}

 private:
  static inline std::byte block[64];
};

TEST(MemoryPool, DestroyedBeforeItsBlocksIsReported) {
  const auto lose_a_block = [] {
    MemoryPool pool(Tier::host, kUnlimited, std::make_unique<StaticSource>());
    pool.allocate_raw(64, "lost");
  };
#ifdef NDEBUG
  const sluice::test::CapturedLog log;
  lose_a_block();
  EXPECT_TRUE(log.contains("destroyed while 64 bytes are in use"));
#else
  EXPECT_DEATH(lose_a_block(), "destroyed while 64 bytes are in use");
#endif
}

TEST(Buffer, MovesTheBlock) {
  CountedPool counted(kUnlimited);
  Buffer first = counted.pool.allocate(4096, "first");
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): what a move leaves behind is the subject
  EXPECT_EQ(second.data(), data);
  second = counted.pool.allocate(64, "second");  // gives the first back
  EXPECT_EQ(counted.pool.usage().live_bytes, 64U);
  second.reset();
  EXPECT_EQ(counted.pool.usage().live_bytes, 0U);
}

TEST(Buffer, IsHostOrDeviceMemoryByTheTierOfItsPool) {
  MemoryPool host(Tier::pinned, kUnlimited, make_host_source());
  MemoryPool device(Tier::device, kUnlimited, make_host_source());
  const Buffer here = host.allocate(100, "here");
  const Buffer there = device.allocate(100, "there");
  EXPECT_EQ(here.bytes().size(), 100U);
  EXPECT_THROW(here.device_span(), InvalidArgument);
  EXPECT_EQ(there.device_span().size_bytes(), 100U);
  EXPECT_THROW(there.bytes(), InvalidArgument);
  EXPECT_THROW(there.data(), InvalidArgument);
  EXPECT_EQ(there.tier(), Tier::device);
}

}  // namespace
}  // namespace sluice::offload
