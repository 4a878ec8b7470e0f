// Memory in mapped pages: no gaps between blocks, blocks kept mapped and reused, pages unmapped
// only when the work that used them has ended.

#include "memory/mapped_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "host_pages.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {
namespace {

using test::HostPages;

constexpr std::uint64_t kPage = 64 * kKiB;
constexpr std::uint64_t kPages = 32;

class Mapped : public testing::Test {
 protected:
  std::unique_ptr<MappedSource> make(std::uint64_t pages = kPages) {
    auto memory = std::make_unique<HostPages>(
        kPage, pages, [this](std::uint64_t mark) { waited.push_back(mark); });
    mappings = &memory->mappings();
    return std::make_unique<MappedSource>(std::move(memory), pages * kPage, Tier::device);
  }
  static void fill(void* block, std::size_t size_bytes, int value) {
    std::memset(block, value, size_bytes);
  }
  static bool is_filled(const void* block, std::size_t size_bytes, int value) {
    const auto* bytes = static_cast<const unsigned char*>(block);
    for (std::size_t i = 0; i < size_bytes; ++i)
      if (bytes[i] != static_cast<unsigned char>(value)) return false;
    return true;
  }

  std::vector<std::uint64_t> waited;         // marks
  const test::Mappings* mappings = nullptr;  // of the last source
};

TEST_F(Mapped, GivesABlockOfPagesThatAreNotBesideEachOther) {
  const auto source = make();
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; i < kPages; ++i) blocks.push_back(source->allocate(kPage));
  for (std::uint64_t i = 0; i < kPages; i += 2) source->free(blocks[i], kPage);
  // Half of the memory is free, and no two pages of it are neighbours.
  void* large = source->allocate(kPages / 2 * kPage);
  fill(large, kPages / 2 * kPage, 7);
  for (std::uint64_t i = 1; i < kPages; i += 2) fill(blocks[i], kPage, static_cast<int>(i));
  EXPECT_TRUE(is_filled(large, kPages / 2 * kPage, 7));
  EXPECT_EQ(source->gap_bytes(), 0U);
  source->free(large, kPages / 2 * kPage);
  for (std::uint64_t i = 1; i < kPages; i += 2) source->free(blocks[i], kPage);
}

TEST_F(Mapped, ReusesABlockOfTheSameNumberOfPages) {
  const auto source = make();
  void* first = source->allocate(3 * kPage);
  source->free(first, 3 * kPage);
  void* second = source->allocate(2 * kPage + 1000);  // three pages too
  EXPECT_EQ(second, first);
  EXPECT_EQ(mappings->made, 1U);
  EXPECT_THAT(waited, testing::IsEmpty()) << "the order of the work is enough";
  source->free(second, 2 * kPage + 1000);
}

TEST_F(Mapped, UnmapsTheBlocksThatWereFreedFirstWhenPagesAreShort) {
  const auto source = make();
  void* a = source->allocate(8 * kPage);
  void* b = source->allocate(10 * kPage);
  void* c = source->allocate(14 * kPage);
  source->free(b, 10 * kPage);
  source->free(a, 8 * kPage);
  void* d = source->allocate(9 * kPage);
  EXPECT_EQ(mappings->ended, 1U) << "b was freed before a";
  EXPECT_EQ(mappings->pages, 8U + 14U + 9U) << "a is mapped still";
  EXPECT_EQ(source->allocate(8 * kPage), a);
  source->free(a, 8 * kPage);
  source->free(c, 14 * kPage);
  source->free(d, 9 * kPage);
}

TEST_F(Mapped, WaitsForTheWorkOfABlockBeforeItIsUnmapped) {
  const auto source = make();
  void* a = source->allocate(20 * kPage);
  source->free(a, 20 * kPage);  // a large part of the memory: its end is marked
  EXPECT_THAT(waited, testing::IsEmpty());
  void* b = source->allocate(30 * kPage);
  EXPECT_THAT(waited, testing::ElementsAre(1U));
  source->free(b, 30 * kPage);
  void* c = source->allocate(kPage);
  source->free(c, kPage);
  void* d = source->allocate(31 * kPage);
  EXPECT_THAT(waited, testing::ElementsAre(1U, 2U)) << "of b; c's pages are not needed";
  source->free(d, 31 * kPage);
}

TEST_F(Mapped, CountsWholePagesAndReportsTheRestAsGaps) {
  const auto source = make();
  EXPECT_EQ(source->block_bytes(kPage + 64), 2 * kPage);
  EXPECT_EQ(source->block_bytes(kPage - 64), kPage - 64);
  void* block = source->allocate(kPage + 64);
  EXPECT_EQ(source->gap_bytes(), kPage - 64);
  source->free(block, kPage + 64);
  EXPECT_EQ(source->gap_bytes(), 0U);
}

TEST_F(Mapped, CutsSmallBlocksFromPagesOfTheirOwn) {
  const auto source = make();
  std::vector<void*> small;
  for (int i = 0; i < 100; ++i) {
    small.push_back(source->allocate(1024));
    fill(small.back(), 1024, i);
  }
  EXPECT_EQ(mappings->pages, ceil_div(100 * 1024, kPage));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(is_filled(small[static_cast<std::size_t>(i)], 1024, i));
  for (void* block : small) source->free(block, 1024);
  // The heap's pages are there for large blocks, after the work that may use them.
  void* all = source->allocate(kPages * kPage);
  EXPECT_THAT(waited, testing::SizeIs(1));
  source->free(all, kPages * kPage);
  void* again = source->allocate(512);
  EXPECT_EQ(mappings->pages, 1U);
  source->free(again, 512);
}

TEST_F(Mapped, ABlockBeyondThePagesIsOutOfMemoryAndUnmapsNothing) {
  const auto source = make();
  void* used = source->allocate(20 * kPage);
  void* cached = source->allocate(4 * kPage);
  source->free(cached, 4 * kPage);
  try {
    source->allocate(13 * kPage);
    FAIL() << "12 pages are within reach";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.tier(), "device");
    EXPECT_EQ(e.available_bytes(), 12 * kPage);
  }
  EXPECT_EQ(mappings->ended, 0U);
  source->free(used, 20 * kPage);
}

TEST_F(Mapped, ServesAPoolToTheLastPage) {
  MemoryPool pool(Tier::device, kPages * kPage, make());
  std::vector<Buffer> blocks;
  for (std::uint64_t i = 0; i < kPages / 2; ++i) blocks.push_back(pool.allocate(kPage + 1, "two"));
  EXPECT_EQ(pool.usage().live_bytes, kPages * kPage);
  EXPECT_THROW(pool.allocate(kPage, "one more"), OutOfMemory);
  blocks.clear();
  EXPECT_EQ(pool.usage().live_bytes, 0U);
  EXPECT_EQ(pool.usage().held_bytes, 0U);
  const Buffer all = pool.allocate(kPages * kPage, "all");
}

TEST_F(Mapped, APoolMakesRoomUntilABlockFits) {
  MemoryPool pool(Tier::device, kPages * kPage, make());
  std::vector<Buffer> droppable;
  for (int i = 0; i < 8; ++i) droppable.push_back(pool.allocate(4 * kPage, "can go"));
  pool.set_make_room([&] {
    if (droppable.empty()) return false;
    droppable.pop_back();
    return true;
  });
  const Buffer block = pool.allocate(10 * kPage, "needed");
  EXPECT_EQ(droppable.size(), 5U);
  EXPECT_THROW(pool.allocate(31 * kPage, "too much"), OutOfMemory);
  EXPECT_TRUE(droppable.empty());
  pool.set_make_room({});
}

// Blocks of all sizes come and go; no block overlaps another one, and no byte is lost.
TEST_F(Mapped, KeepsItsBytesThroughRandomUse) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    MemoryPool pool(Tier::device, kPages * kPage, make());
    std::mt19937 random(seed);
    struct Used {
      void* block;
      std::size_t size_bytes;
      int value;
    };
    std::vector<Used> used;
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      const bool small = random() % 2 == 0;
      const std::size_t size_bytes = 1 + random() % (small ? 8 * kKiB : 6 * kPage);
      if (random() % 3 == 0 && !used.empty()) {
        const std::size_t which = random() % used.size();
        ASSERT_TRUE(is_filled(used[which].block, used[which].size_bytes, used[which].value));
        pool.free_raw(used[which].block, used[which].size_bytes);
        used.erase(used.begin() + static_cast<std::ptrdiff_t>(which));
        continue;
      }
      try {
        void* block = pool.allocate_raw(size_bytes, "a block");
        fill(block, size_bytes, i);
        used.push_back({block, size_bytes, i});
      } catch (const OutOfMemory&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0) << "the memory was full";
    for (const Used& each : used) {
      ASSERT_TRUE(is_filled(each.block, each.size_bytes, each.value));
      pool.free_raw(each.block, each.size_bytes);
    }
    pool.free_raw(pool.allocate_raw(kPages * kPage, "all of it"), kPages * kPage);
  }
}

}  // namespace
}  // namespace sluice::offload
