#pragma once
// Full checkpoints: a folder below checkpoint_dir in the format of a swap directory, written under
// another name and renamed when it is whole.

#include <memory>
#include <string>

#include "run_resources.hpp"
#include "sluice/models/run_state.hpp"

namespace sluice::train {

// Creates `directory` when it is absent and holds it for this run, so that two runs cannot mix
// their checkpoints; removes those that a killed run did not finish. Throws StorageError naming the
// process that has it, IoError when it cannot be had or written to.
std::unique_ptr<offload::DirectoryLock> hold_checkpoint_directory(const std::string& directory);

// Writes CHECKPOINT_DIR/step-NNNNNNNN from the updater's states and removes all but the newest
// `keep`. The updates of `state.step` must have ended. Blocks. Throws IoError, StorageError; then
// older checkpoints are untouched.
void write_checkpoint(RunResources& resources, const models::RunState& state);

}  // namespace sluice::train
