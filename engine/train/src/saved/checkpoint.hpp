#pragma once
// How a run's states survive it and come back: commits of the swap directory, and full checkpoints.
// A checkpoint is a folder below checkpoint_dir in the format of a swap directory. It is written
// under a draft name and renamed when it is whole.

#include <cstdint>
#include <string>

#include "saved/run_source.hpp"
#include "saved/saved_state.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Writes DIRECTORY/step-NNNNNNNN from the updater's states, and syncs it with the drive. Then
// removes older checkpoints of the run's line: the one of this step, which it replaces, and all but
// the newest `keep`. Checkpoints of other lines are kept; when one of them has the name, the folder
// is step-NNNNNNNN.2. Raises progress.order above the line's checkpoints in `directory`. The
// updates of `progress.step` must have ended. The caller holds `directory` by its lock. Blocks.
// Throws IoError, StorageError; then all checkpoints are unchanged.
void write_checkpoint(RunResources& resources, Progress& progress, const RunIdentity& identity,
                      const std::string& directory);

// Whether commit_step() saves `step`: to the swap directory, as a checkpoint, or both. `ending`: no
// step follows.
bool saves_step(const RunResources& resources, std::int64_t step, bool ending);

// After the updates of `progress.step`: commits the swap directory, writes a checkpoint, or both,
// as the configuration asks. `ending`: no step follows. Sets progress.committed_step when the step
// now survives the process. Blocks. A checkpoint that cannot be written is an error in the log and
// counts in progress.missed; with "strict" it is thrown. Throws IoError, StorageError when the swap
// directory cannot be committed.
void commit_step(RunResources& resources, Progress& progress, const RunIdentity& identity,
                 bool ending);

// "2 checkpoints could not be written; ...", for the end of a run. `missed.count` is positive.
std::string missed_text(const MissedCheckpoints& missed);

// Reads the states of all units that train from a source that has a state. Blocks. Throws
// StorageError when the source is damaged or is not any more what `source` was read from; then the
// states are a mix and must not be trained on.
void restore_states(RunResources& resources, const RunSource& source);
// Commits the swap directory to states that were restored from a checkpoint, so that it is whole
// before the next step is committed, and when none follows. Does nothing when it holds them
// already. Blocks. Throws IoError, StorageError.
void commit_restored(RunResources& resources, const RunSource& source);

}  // namespace sluice::train
