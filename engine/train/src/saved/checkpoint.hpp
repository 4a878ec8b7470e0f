#pragma once
// How a run's states survive it and come back: commits of the swap directory, and full checkpoints.
// A checkpoint is a folder below checkpoint_dir in the format of a swap directory. It is written
// under a draft name and renamed when it is whole. All ranks call these functions together; a
// checkpoint of several ranks has a folder for each, and rank 0 names and removes checkpoints.
//
// checkpoint.cpp has the commits and checkpoints, restore.cpp how states come back.

#include <cstdint>
#include <string>

#include "saved/checkpoint_writer.hpp"
#include "saved/saved_state.hpp"
#include "sluice/train/run_source.hpp"
#include "step/run_resources.hpp"

namespace sluice::train {

// Writes DIRECTORY/step-NNNNNNNN from the updater's states, and syncs it with the drive. Then
// removes older checkpoints of the run's line: the one of this step, which it replaces, and all but
// the newest `keep`. `writer` writes no other checkpoint. Blocks until the checkpoint is whole.
// Throws as CheckpointWriter::begin() and finish().
void write_checkpoint(CheckpointWriter& writer, Progress& progress, const RunIdentity& identity,
                      const std::string& directory);

// Whether commit_step() saves `step`: to the swap directory, as a checkpoint, or both. `ending`: no
// step follows.
bool saves_step(const RunResources& resources, std::int64_t step, bool ending);
// Whether that survives loss of power: a commit with "durability": "power", or any checkpoint.
bool saves_step_from_power_loss(const RunResources& resources, std::int64_t step, bool ending);

// After the updates of `progress.step`: commits the swap directory, begins a checkpoint, or both,
// as the configuration asks; and takes note of an earlier checkpoint that has become whole. Waits
// for the commit. Waits for a checkpoint if it is the earlier one and the next is due, if no step
// follows (`ending`), or if overlap is off. Raises progress.committed_step to the last step that
// survives the process. A checkpoint that cannot be written is an error in the log and counts in
// progress.missed, perhaps some steps later; with "strict" it is thrown. Throws IoError,
// StorageError when the swap directory cannot be committed.
void commit_step(RunResources& resources, CheckpointWriter& writer, Progress& progress,
                 const RunIdentity& identity, bool ending);
// Waits for the checkpoint that is being written, if any. Errors are those of commit_step().
void finish_checkpoint(const RunResources& resources, CheckpointWriter& writer, Progress& progress);

// For a resumed run that takes no step, since the one before took them all: writes the checkpoint
// of the last step if it is due and the run's line has none. The run before ended while it wrote
// that. Blocks. Errors are those of commit_step().
void make_up_checkpoint(const RunResources& resources, CheckpointWriter& writer, Progress& progress,
                        const RunIdentity& identity);

// "2 checkpoints could not be written; ...", for the end of a run. `missed.count` is positive.
std::string missed_text(const MissedCheckpoints& missed);

// Reads the states of all units that train from a source that has a state, which any number of
// ranks wrote. Blocks. Throws StorageError on every rank when the source is damaged, or is not any
// more what `source` was read from. `begun`, which may be null, is set on every rank before any
// rank replaces its first state; behind that an error leaves states that are a mix and must not be
// trained on.
void restore_states(RunResources& resources, const RunSource& source, bool* begun = nullptr);
// Commits the swap directory to states that were restored from a checkpoint, so that it is whole
// before the next step is committed, and when none follows. Does not when it holds them already.
// Then removes from it what another number of ranks left there. Blocks. Throws IoError,
// StorageError.
void commit_restored(RunResources& resources, const RunSource& source);

}  // namespace sluice::train
