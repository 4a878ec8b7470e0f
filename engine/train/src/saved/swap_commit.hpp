#pragma once
// The swap directory as a saved state: its commits, and its end. All ranks call these.
// Thread-compatible: free functions, called by the thread that trains.

#include <cstdint>
#include <exception>
#include <string>

#include "sluice/models/run_state.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/train/run_source.hpp"
#include "step/run_files.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// How the swap directory of a run from `source` begins, which has locked `held`.
SwapStart start_of(const RunSource& source, const offload::HeldDirectories& held);
// Commits the states that the updates have left in the swap directory, as `state`, on all ranks at
// one moment (models::commit_parts). Blocks. Throws IoError, StorageError.
void commit_swap(RunResources& resources, const models::RunState& state);
// Before the first write in the swap directory: what the run before left there survives as this
// run's "durability" says, on all ranks. Blocks. Throws IoError, StorageError.
void settle_swap(RunResources& resources);
// Before the first write over parts that an orderly end with "durability": "none" left to as many
// ranks: they are no state any more. Blocks. Throws IoError, StorageError.
void release_closed_parts(RunResources& resources);
// The orderly end: with "durability": "none", the last commit becomes the state to resume from;
// with each, what the drive tells at a close about the states is an error.
// Does nothing when the swap directory is not committed or no step was. Blocks. Throws IoError,
// StorageError.
void close_swap(RunResources& resources);
// Removes what another number of ranks left in the swap directory, once this run has committed a
// state there. An error is a line in the log.
void remove_replaced_states(RunResources& resources);
// The state that a new process would go on from after an error, for people; `checkpoint_step`: of
// the last checkpoint that this run knows, 0: none.
std::string what_is_saved(const RunResources& resources, std::int64_t checkpoint_step);
// Syncs the state that is in the swap directory alone, after an error of storage. Says, for people,
// that the system's memory alone may have it; empty: the drive has it, or the error is another one.
// Blocks, on a drive that fails perhaps for long.
std::string what_may_be_lost(const RunResources& resources, std::int64_t checkpoint_step,
                             const std::exception_ptr& error);

}  // namespace sluice::train
