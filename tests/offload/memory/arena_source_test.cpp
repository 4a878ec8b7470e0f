#include "sluice/offload/arena_source.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "counting_source.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload {
namespace {

using test::CountingSource;
using test::SourceCounts;

std::unique_ptr<ArenaSource> make_arena(std::uint64_t size_bytes, std::size_t granule_bytes = 64) {
  return std::make_unique<ArenaSource>(make_host_source(), size_bytes, Tier::device, granule_bytes);
}

TEST(ArenaSource, TakesOneBlockOfItsBackingAndGivesItBack) {
  SourceCounts counts;
  {
    ArenaSource arena(std::make_unique<CountingSource>(counts), 16 * kPageBytes, Tier::pinned);
    void* a = arena.allocate(kPageBytes);
    void* b = arena.allocate(64);
    arena.free(a, kPageBytes);
    arena.free(b, 64);
    EXPECT_EQ(counts.allocations, 1U);
    EXPECT_EQ(counts.outside_bytes, 16 * kPageBytes);
  }
  EXPECT_EQ(counts.outside_bytes, 0U);
}

TEST(ArenaSource, HoldsExactlyItsSize) {
  const auto arena = make_arena(4 * kPageBytes);
  std::vector<void*> blocks;
  blocks.reserve(4);
  for (int i = 0; i < 4; ++i) blocks.push_back(arena->allocate(kPageBytes));
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), nullptr), 0);
  EXPECT_THROW(arena->allocate(64), OutOfMemory);
  EXPECT_EQ(arena->usage().free_bytes, 0U);
  for (void* block : blocks) arena->free(block, kPageBytes);
  void* all = arena->allocate(4 * kPageBytes);
  EXPECT_NE(all, nullptr);
  arena->free(all, 4 * kPageBytes);
}

TEST(ArenaSource, LargeBlocksStartAtPagesAlsoBetweenSmallOnes) {
  const auto arena = make_arena(64 * kPageBytes);
  const auto address = [](void* block) { return reinterpret_cast<std::uintptr_t>(block); };
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (const std::size_t size : {std::size_t{64}, kPageBytes, std::size_t{192}, 3 * kPageBytes}) {
    blocks.emplace_back(arena->allocate(size), size);
    ASSERT_NE(blocks.back().first, nullptr);
    EXPECT_EQ(address(blocks.back().first) % (size >= kPageBytes ? kPageBytes : 64), 0U);
  }
  for (const auto& [block, size] : blocks) arena->free(block, size);
  EXPECT_EQ(arena->usage().largest_free_bytes, 64 * kPageBytes);
}

TEST(ArenaSource, TakesWholeGranules) {
  const auto arena = make_arena(kPageBytes, 512);
  void* a = arena->allocate(64);
  void* b = arena->allocate(64);
  EXPECT_EQ(static_cast<std::byte*>(a) - static_cast<std::byte*>(b), 512);
  EXPECT_EQ(arena->usage().free_bytes, kPageBytes - 1024);
  arena->free(a, 64);
  arena->free(b, 64);
}

TEST(ArenaSource, TellsFreeBytesFromWhatCanBeHadInOnePiece) {
  const auto arena = make_arena(3 * kPageBytes);
  void* a = arena->allocate(kPageBytes);
  void* b = arena->allocate(kPageBytes);
  void* c = arena->allocate(kPageBytes);
  arena->free(a, kPageBytes);
  arena->free(c, kPageBytes);
  EXPECT_EQ(arena->usage().free_bytes, 2 * kPageBytes);
  EXPECT_EQ(arena->usage().largest_free_bytes, kPageBytes);
  try {
    arena->allocate(2 * kPageBytes);
    FAIL() << "there is no such piece";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.available_bytes(), kPageBytes);
    EXPECT_NE(std::string(e.what()).find("8.00 KiB of the budget are free"), std::string::npos)
        << e.what();
  }
  arena->free(b, kPageBytes);
}

TEST(ArenaSource, NamesTheTierThatIsShort) {
  SourceCounts counts;
  counts.failures_left = 1;
  try {
    ArenaSource arena(std::make_unique<CountingSource>(counts), 2 * kPageBytes, Tier::pinned);
    FAIL() << "the backing has no such block";
  } catch (const OutOfMemory& e) {
    EXPECT_EQ(e.tier(), "pinned");
    EXPECT_EQ(e.requested_bytes(), 2 * kPageBytes);
  }
}

// Blocks never overlap, whatever is taken and given back, and in the end all is one run again.
TEST(ArenaSource, BlocksKeepTheirBytesUnderRandomUse) {
  constexpr std::uint64_t kSize = 256 * kPageBytes;
  const auto arena = make_arena(kSize);
  struct Block {
    unsigned char* data;
    std::size_t size_bytes;
    unsigned char value;
  };
  std::vector<Block> blocks;
  std::mt19937 random(17);
  const auto give_back = [&](std::size_t i) {
    const Block block = blocks[i];
    EXPECT_TRUE(std::all_of(block.data, block.data + block.size_bytes,
                            [&](unsigned char c) { return c == block.value; }));
    arena->free(block.data, block.size_bytes);
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t wanted = random() % 3 == 0 ? random() % (20 * kPageBytes) : random() % 2000;
    const auto size_bytes = static_cast<std::size_t>(pool_bytes(1 + wanted));
    bool full = false;
    try {
      auto* data = static_cast<unsigned char*>(arena->allocate(size_bytes));
      const auto value = static_cast<unsigned char>(random());
      std::memset(data, value, size_bytes);
      blocks.push_back({data, size_bytes, value});
    } catch (const OutOfMemory&) {
      full = true;
    }
    while (!blocks.empty() && (full ? random() % 4 != 0 : random() % 2 == 0))
      give_back(random() % blocks.size());
  }
  while (!blocks.empty()) give_back(blocks.size() - 1);
  EXPECT_EQ(arena->usage().largest_free_bytes, kSize);
  EXPECT_EQ(arena->usage().free_bytes, kSize);
}

TEST(ArenaSource, APoolOverItKeepsNoFreedBlocksBetweenTheOthers) {
  auto source = make_arena(4 * kPageBytes);
  const ArenaSource* arena = source.get();
  MemoryPool pool(Tier::device, 4 * kPageBytes, std::move(source));
  Buffer first = pool.allocate(kPageBytes, "first");
  const Buffer second = pool.allocate(kPageBytes, "second");
  first.reset();
  EXPECT_EQ(arena->usage().free_bytes, 3 * kPageBytes);
  EXPECT_EQ(pool.usage().held_bytes, kPageBytes);
  EXPECT_EQ(pool.usage().gap_bytes, kPageBytes) << "before the second, apart from the rest";
}

TEST(ArenaSource, RefusesWhatItCannotServeFrom) {
  EXPECT_THROW(ArenaSource(nullptr, kPageBytes, Tier::device), InvalidArgument);
  for (const std::size_t granule :
       {std::size_t{0}, std::size_t{32}, std::size_t{96}, 2 * kPageBytes})
    EXPECT_THROW(make_arena(kPageBytes, granule), InvalidArgument) << granule;
}

}  // namespace
}  // namespace sluice::offload
