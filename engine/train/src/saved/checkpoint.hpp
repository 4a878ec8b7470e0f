#pragma once
// How a run's states survive it and come back: commits of the swap directory, and full checkpoints.
// A checkpoint is a folder below checkpoint_dir in the format of a swap directory. It is written
// under a draft name and renamed when it is whole.

#include <memory>
#include <string>

#include "saved/run_source.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Creates `directory` when it is absent and locks it for this run, so that two runs never mix their
// checkpoints. Removes drafts that a killed run left. Throws StorageError naming the process that
// holds the lock, IoError when the directory cannot be created or written to.
std::unique_ptr<offload::DirectoryLock> hold_checkpoint_directory(const std::string& directory);

// Writes DIRECTORY/step-NNNNNNNN from the updater's states, then removes all but the newest `keep`
// checkpoints. The updates of `state.step` must have ended. Blocks. Throws IoError, StorageError;
// then checkpoints of other steps are unchanged. A checkpoint of this step that exists is removed
// before the new one gets its name, so an error in between leaves neither.
void write_checkpoint(RunResources& resources, const models::RunState& state,
                      const std::string& directory);

// After the updates of `state.step`: commits the swap directory, writes a checkpoint, or both, as
// the configuration asks. `ending`: no step follows. Returns true when the step now survives the
// process. Blocks.
bool commit_step(RunResources& resources, const models::RunState& state, bool ending);

// Reads the states of all units that train from a source that has a state. Blocks.
void restore_states(RunResources& resources, const RunSource& source);

}  // namespace sluice::train
