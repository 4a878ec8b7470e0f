#pragma once
// UpdaterResources, what a StateUpdater works with, and UpdateCounters, what it reports. Both are
// plain values.

#include <cstdint>
#include <vector>

#include "device/gpu_compute.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/memory_pool.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/sharded_unit.hpp"

namespace sluice::train {

// Everything named here outlives the updater.
struct UpdaterResources {
  const plan::Plan* plan = nullptr;
  std::vector<zero::ShardedUnit*> units;
  offload::Device* device = nullptr;
  offload::MemoryPool* host_pool = nullptr;  // holds tiles, and states in host memory
  nvme::IoEngine* io = nullptr;              // null: nothing is in files
  offload::SwapStore* store = nullptr;       // null: no states are on NVMe
  Executor* executor = nullptr;
  Trace* trace = nullptr;  // row "update": the computation of each tile; may be null
  IssueStep issue_step;    // empty: the device computes no updates
};

// On a GPU's host, threads that launch kernels wake for microseconds and must not wait for a core.
// A host that computes itself has to share its cores: background updates would wait for the end of
// backward.
inline ThreadPriority priority_of_updates(const plan::Plan& plan) {
  return plan.device.gpu ? ThreadPriority::background : ThreadPriority::normal;
}

// Updates that began before the norm was known, counted by unit.
struct SpeculativeCounters {
  std::uint64_t kept = 0;
  std::uint64_t dropped = 0;   // done again with another factor, or the step was skipped
  double dropped_seconds = 0;  // that threads computed for these
};

// Traffic and time of updates.
struct UpdateCounters {
  std::uint64_t nvme_read_bytes = 0;
  std::uint64_t nvme_cached_bytes = 0;      // not read, because the cache holds them
  std::uint64_t checkpoint_read_bytes = 0;  // read from NVMe for checkpoints, beside the others
  std::uint64_t nvme_written_bytes = 0;
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  double compute_seconds = 0;         // of the optimizer's threads
  std::uint64_t elements = 0;         // of the updates that were begun
  std::uint64_t device_elements = 0;  // of these, updated by the device
  SpeculativeCounters speculated;
};

}  // namespace sluice::train
