// A unit whose gradients wait on a drive that fails.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "offload/transfer/wrapped_backend.hpp"
#include "rank_units.hpp"
#include "sluice/base/error.hpp"
#include "temp_dir.hpp"

namespace sluice::zero {
namespace {

using offload::Tier;
using test::floats;
using test::layout_of;
using test::Rank;
using test::set_zero;

TEST(GradientsOnDrive, StayThereWhereTheyCannotBeReadBack) {
  const UnitLayout layout = layout_of("u", 5000, 1);
  const std::uint64_t size_bytes = layout.flat_count * 4;
  const sluice::test::TempDir dir;
  nvme::StripedFile file{
      nvme::SwapFile(dir.file("homes"), nvme::OpenMode::create, nvme::DirectIo::automatic)};
  file.allocate(size_bytes);
  offload::test::Fault fault;
  nvme::IoEngine io(std::make_unique<offload::test::FaultyBackend>(
                        nvme::make_backend(nvme::BackendKind::automatic, 32, 2).backend, fault),
                    nvme::IoEngineOptions{.block_bytes = 4096, .depth = 8});
  Rank rank = test::single();
  offload::MemoryPool staging(Tier::host, offload::kUnlimited, offload::make_host_source());
  offload::Mover mover(*rank.device, &io, &staging, {.tile_bytes = 8192, .tiles = 3});
  rank.context.mover = &mover;
  ShardedUnit unit(layout, rank.context,
                   offload::TieredBytes(Tier::host, rank.host.allocate(size_bytes, "weights")),
                   offload::TieredBytes(offload::FileRange{&file, 0, size_bytes}));
  double stall = 0;
  const auto add = [&] {
    for (float& value : floats(rank, unit.gradients())) value += 1.5F;
    unit.begin_reduce_home();
    unit.finish_reduce(stall);
  };
  set_zero(rank, unit.begin_accumulate());
  add();

  set_zero(rank, unit.begin_accumulate());
  fault.requests_until = 0;
  EXPECT_THROW(unit.restore_accumulated(stall), IoError);
  EXPECT_EQ(unit.gradient_state(), GradientState::waiting);
  EXPECT_EQ(rank.device->memory().usage().live_bytes, 0U);

  set_zero(rank, unit.begin_accumulate());
  unit.restore_accumulated(stall);
  add();
  set_zero(rank, unit.begin_accumulate());
  unit.restore_accumulated(stall);
  EXPECT_EQ(floats(rank, unit.gradients()).front(), 3.0F);
  EXPECT_EQ(floats(rank, unit.gradients()).back(), 3.0F);
}

}  // namespace
}  // namespace sluice::zero
