#pragma once
// Full checkpoints: a folder below checkpoint_dir in the format of a swap directory, written under
// another name and renamed when it is whole.

#include <cstdint>
#include <string>

#include "run_resources.hpp"
#include "sluice/models/run_state.hpp"

namespace sluice::train {

// Writes CHECKPOINT_DIR/step-NNNNNNNN from the updater's states and removes all but the newest
// `keep`. The updates of `state.step` must have ended. Blocks. Throws IoError, StorageError; then
// older checkpoints are untouched.
void write_checkpoint(RunResources& resources, const models::RunState& state);

}  // namespace sluice::train
