// Tiles of a pipeline that other threads compute.

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "sluice/offload/tile_pipeline.hpp"

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

}  // namespace
}  // namespace sluice::offload
