// Tiles of a pipeline that other threads compute.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/offload/tile_pipeline.hpp"

namespace {
thread_local std::size_t allocations = 0;  // of this thread
}  // namespace

// Not inlined: GCC would take the two for a mismatch.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace sluice::offload {
namespace {

TEST(TileComputations, RunBesideEachOther) {
  std::vector<TicketSource> computations(3);
  std::vector<int> begun, written, ended, failed;
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  BufferRing ring(pool, 4096, 3, "tiles");
  TilePipeline pipeline(ring);
  for (int i = 0; i < 3; ++i) {
    TileJob job;
    job.begin_compute = [&, i](std::span<std::byte>) {
      begun.push_back(i);
      Tickets tickets;
      tickets.push_back(computations[static_cast<std::size_t>(i)].ticket());
      return tickets;
    };
    job.begin_write = [&, i](std::span<std::byte>) {
      written.push_back(i);
      return Tickets();
    };
    job.done = [&, i](const std::exception_ptr& error) { (error ? failed : ended).push_back(i); };
    EXPECT_TRUE(pipeline.poll());
    pipeline.push(std::move(job));
  }
  EXPECT_EQ(begun, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(pipeline.poll());  // every tile is computed
  // A tile does not wait for those that are computed longer.
  computations[2].complete();
  EXPECT_TRUE(pipeline.poll());
  EXPECT_EQ(written, std::vector<int>{2});
  EXPECT_EQ(ended, std::vector<int>{2});
  computations[1].complete(std::make_exception_ptr(std::runtime_error("broken")));
  EXPECT_TRUE(pipeline.poll());
  EXPECT_EQ(failed, std::vector<int>{1}) << "its error is its own";
  computations[0].complete();
  EXPECT_TRUE(pipeline.step());
  pipeline.drain();
  EXPECT_EQ(ended, (std::vector<int>{2, 0}));
  EXPECT_EQ(written, (std::vector<int>{2, 0}));
}

// Without memory, a tile whose work has begun would have to wait for it. The thread that drives the
// pipeline may be the one that does it later.
TEST(TileComputations, HaveAPlaceForTheirTileBeforeTheyBegin) {
  constexpr std::size_t kTiles = 16;
  std::vector<TicketSource> computations(kTiles), writes(kTiles);
  MemoryPool pool(Tier::host, kUnlimited, make_host_source());
  BufferRing ring(pool, 4096, kTiles, "tiles");
  TilePipeline pipeline(ring);
  std::size_t allocations_before = 0;
  const auto begin = [&](std::vector<TicketSource>& sources, std::size_t i) {
    Tickets tickets;
    tickets.push_back(sources[i].ticket());
    allocations_before = allocations;
    return tickets;
  };
  for (std::size_t i = 0; i < kTiles; ++i) {
    TileJob job;
    job.begin_compute = [&, i](std::span<std::byte>) { return begin(computations, i); };
    job.begin_write = [&, i](std::span<std::byte>) { return begin(writes, i); };
    pipeline.push(std::move(job));
    EXPECT_EQ(allocations, allocations_before) << "tile " << i << " is computed";
  }
  for (std::size_t i = 0; i < kTiles; ++i) {
    computations[i].complete();
    pipeline.step();
    EXPECT_EQ(allocations, allocations_before) << "tile " << i << " is written";
  }
  for (TicketSource& write : writes) write.complete();
}

}  // namespace
}  // namespace sluice::offload
