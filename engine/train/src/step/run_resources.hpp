#pragma once
// RunResources: everything a run holds, allocated as the plan says and nothing else: device, pools,
// files, units with their homes, updater, input store, prefetcher. The model's modules are not
// among them. In the order of construction; destroyed in reverse.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/run_device.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/direct_reader.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/communicator.hpp"
#include "sluice/zero/prefetcher.hpp"
#include "sluice/zero/sharded_unit.hpp"
#include "step/input_store.hpp"
#include "step/rank_links.hpp"
#include "step/run_files.hpp"
#include "step/state_copies.hpp"
#include "update/state_updater.hpp"

namespace sluice::train {

// Owners in order. Its members are public: the parts of a run use each other through it.
// Confined to the thread that trains.
struct RunResources {
  // `plan`, `start.held` and `trace` must outlive it; `trace` may be null. `device`: that of the
  // plan, or a stand-in of a test. Throws OutOfMemory, IoError, StorageError; then no committed
  // state is lost.
  RunResources(const plan::Plan& plan, const SwapStart& start, Trace* trace, RunDevice device,
               RankLinks ranks = {});
  RunResources(const RunResources&) = delete;
  RunResources& operator=(const RunResources&) = delete;

  // True when every unit's optimizer states are on NVMe: then the swap directory is committed, and
  // alone is enough to resume from.
  bool commits_swap() const;
  // True when `step` is committed to the swap directory. `ending`: no step follows.
  bool commits(std::int64_t step, bool ending) const;

  const plan::Plan& plan;
  Trace* const trace;
  RunDevice compute;
  const std::shared_ptr<offload::Device>& device = compute.device;
  // As given, until the communicators below are made of them. They end before the device.
  RankLinks links;
  std::unique_ptr<offload::MemoryPool> host_pool;
  // Counts in host_pool; null when nothing is pinned.
  std::unique_ptr<offload::MemoryPool> pinned_pool;
  RunFiles files;
  // Reads weights and inputs from drives straight into a GPU's memory. Null where that is not
  // faster.
  std::unique_ptr<offload::DirectReader> direct_reader;
  std::unique_ptr<offload::Mover> mover;
  std::unique_ptr<zero::Communicator> communicator;
  std::unique_ptr<zero::Communicator> gather_communicator;
  std::unique_ptr<Worker> gather_worker;
  std::unique_ptr<Worker> arrival_worker;  // null: one rank
  std::unique_ptr<Worker> reduce_worker;   // null: one rank
  std::unique_ptr<Executor> executor;
  zero::UnitContext unit_context;
  // Homes that gradients use in turn. Empty when every unit has a home for its gradients.
  std::optional<offload::BufferRing> gradient_slots;
  std::vector<std::unique_ptr<zero::ShardedUnit>> units;
  std::unique_ptr<StateUpdater> updater;
  std::unique_ptr<StateCopies> state_copies;
  std::unique_ptr<InputStore> inputs;
  std::unique_ptr<zero::Prefetcher> prefetcher;
  std::unique_ptr<config::LearningRates> rates;

  // The pool of tiles and of homes in host memory.
  offload::MemoryPool& staging() { return pinned_pool ? *pinned_pool : *host_pool; }

 private:
  std::unique_ptr<zero::Communicator> for_device(std::unique_ptr<zero::Communicator> ranks);
  void note_registration();
  void probe_direct_storage();
  offload::TieredBytes make_home(offload::Tier tier, std::uint64_t size_bytes,
                                 const std::string& what_for);
  void make_units();
  void make_inputs();
};

}  // namespace sluice::train
