#pragma once
// How a run's states survive it, and come back: commits of the swap directory, and full
// checkpoints: a folder below checkpoint_dir in the format of a swap directory, written under
// another name and renamed when it is whole.

#include <memory>
#include <string>

#include "saved/run_source.hpp"
#include "sluice/models/run_state.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Creates `directory` when it is absent and holds it for this run, so that two runs cannot mix
// their checkpoints; removes those that a killed run did not finish. Throws StorageError naming the
// process that has it, IoError when it cannot be had or written to.
std::unique_ptr<offload::DirectoryLock> hold_checkpoint_directory(const std::string& directory);

// Writes DIRECTORY/step-NNNNNNNN from the updater's states and removes all but the newest `keep`.
// The updates of `state.step` must have ended. Blocks. Throws IoError, StorageError; then older
// checkpoints are untouched.
void write_checkpoint(RunResources& resources, const models::RunState& state,
                      const std::string& directory);

// Whether commit_step() will commit the step to the swap directory.
bool commits_step(const RunResources& resources, std::int64_t step, bool ending);

// After the updates of `state.step`: what the configuration asks for, a commit of the swap
// directory or a checkpoint, or both. `ending`: no step follows. Returns whether the step now
// survives. Blocks.
bool commit_step(RunResources& resources, const models::RunState& state, bool ending);

// Brings back the states of the units that train from a source with a state. Blocks.
void restore_states(RunResources& resources, const RunSource& source);

}  // namespace sluice::train
