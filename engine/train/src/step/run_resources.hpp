#pragma once
// RunResources: everything a run holds, allocated as the plan says and nothing else: device, pools,
// I/O engine, swap store, scratch file, units with their homes, updater, input store. Not the
// model's modules. In the order of construction; destroyed in reverse.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/run_device.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/base/worker.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/nvme/io_engine.hpp"
#include "sluice/offload/device.hpp"
#include "sluice/offload/direct_reader.hpp"
#include "sluice/offload/mover.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/zero/communicator.hpp"
#include "sluice/zero/prefetcher.hpp"
#include "sluice/zero/sharded_unit.hpp"
#include "step/input_store.hpp"
#include "update/state_updater.hpp"

namespace sluice::train {

// Whether the swap directory is begun anew or gone on from.
enum class SwapMode { create, open };

// The I/O engine of a run, from the "aio" section; `choice` gets the line about why not a better
// backend. `trace` may be null.
std::unique_ptr<nvme::IoEngine> make_io_engine(const plan::Plan& plan, std::string& choice,
                                               Trace* trace);

// The members are public: it is a struct of owners, in order, without behaviour of its own.
// Confined to the thread that trains.
struct RunResources {
  // The plan must outlive it. Throws OutOfMemory, IoError, StorageError; then nothing that was
  // there before is lost.
  // `trace` may be null, and outlives it.
  RunResources(const plan::Plan& plan, SwapMode mode, Trace* trace = nullptr);
  // On a device that a test gives.
  RunResources(const plan::Plan& plan, SwapMode mode, Trace* trace, RunDevice device);
  RunResources(const RunResources&) = delete;
  RunResources& operator=(const RunResources&) = delete;

  // True when every unit's optimizer states are on NVMe: then the swap directory is the checkpoint.
  bool states_are_durable() const;

  const plan::Plan& plan;
  Trace* const trace;
  std::string io_choice;
  RunDevice compute;
  const std::shared_ptr<offload::Device>& device = compute.device;
  std::unique_ptr<offload::MemoryPool> host_pool;
  std::unique_ptr<offload::MemoryPool>
      pinned_pool;  // counts in host_pool; null when nothing is pinned
  std::unique_ptr<nvme::IoEngine> io;
  std::unique_ptr<offload::SwapStore> store;
  std::vector<offload::DirectoryLock> scratch_locks;
  std::unique_ptr<offload::ScratchFile> scratch;
  std::vector<nvme::Registration> scratch_registrations;
  // Reads weights and inputs from drives into a GPU's memory, where that is faster; else null.
  std::unique_ptr<offload::DirectReader> direct_reader;
  std::unique_ptr<offload::Mover> mover;
  std::unique_ptr<zero::Communicator> communicator;
  std::unique_ptr<zero::Communicator> gather_communicator;
  std::unique_ptr<Worker> gather_worker;
  std::unique_ptr<Executor> executor;
  zero::UnitContext unit_context;
  // Where gradients of units without a home for them wait; empty when all have one.
  std::optional<offload::BufferRing> gradient_slots;
  std::vector<std::unique_ptr<zero::ShardedUnit>> units;
  std::unique_ptr<StateUpdater> updater;
  std::unique_ptr<InputStore> inputs;
  std::unique_ptr<zero::Prefetcher> prefetcher;

  // The pool that staging tiles and host homes come from.
  offload::MemoryPool& staging() { return pinned_pool ? *pinned_pool : *host_pool; }

 private:
  void note_registration();
  offload::SwapPlace make_place(const std::string& directory,
                                const std::vector<std::string>& further);
  void check_weights(const std::vector<unsigned>& weights) const;
  void note_place(const std::string& directory, const std::string& why_buffered);
  void make_pools();
  void open_files(SwapMode mode);
  void probe_direct_storage();
  offload::TieredBytes make_home(offload::Tier tier, std::uint64_t size_bytes,
                                 const std::string& what_for);
  void make_units();
  void make_inputs();
};

}  // namespace sluice::train
