// The copy of states to a checkpoint waits for the checkpoint's drive before it uses a tile again.

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "offload/transfer/wrapped_backend.hpp"
#include "optimizer_updates.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/swap_store.hpp"

namespace sluice::train {
namespace {

TEST(CheckpointCopy, WaitsForASlowDrive) {
  test::OptimizerUpdates updates({.where = test::Where::nvme});
  updates.take_step(1);
  const plan::Plan& plan = updates.plan();
  const sluice::test::TempDir dir;
  nvme::BackendChoice real = nvme::make_backend(nvme::BackendKind::threads, 8, 2);
  nvme::IoEngine io(std::make_unique<offload::test::SlowBackend>(std::move(real.backend)), {});
  const auto store = offload::SwapStore::create(
      dir.path(), io, models::state_shards(plan.layouts, plan.state_format, 1), Durability::none,
      nvme::DirectIo::off);
  std::vector<Ticket> copies;
  for (std::size_t u = 0; u < plan.layouts.size(); ++u)
    copies.push_back(updates.resources().updater->begin_copy_to(u, *store));
  finish_all(copies);
  store->commit(1, "{}");
  for (std::size_t i = 0; i < store->shard_count(); ++i) {
    std::vector<std::byte> bytes(store->shard(i).size_bytes);
    store->begin_read(i, 0, bytes).finish();
    EXPECT_NO_THROW(store->check(i, 0, bytes));
  }
}

}  // namespace
}  // namespace sluice::train
