#pragma once
// The checkpoints in a directory, and which of them is the newest. A directory may hold checkpoints
// of several lines (RunState::line). Within a line, RunState::order tells the newest; the step does
// not, because a run may have returned to an earlier step. No LibTorch. Thread-safe: values and
// free functions without state.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::models {

// A checkpoint: a folder step-NNNNNNNN that holds a committed state.
struct Checkpoint {
  std::string path;
  std::int64_t step = 0;
  std::string line;
  std::int64_t order = 0;
  std::int64_t saved_at = 0;
  int number = 1;  // in the folder's name, of several checkpoints of one step
  // Empty, or why its manifest cannot be read; then line and order are unknown, and saved_at is
  // when its folder was last changed.
  std::string damage;
};

// The checkpoints in `directory` whose manifest is there, by step, then order. Their shards are not
// read. Empty when there is no `directory`. Throws IoError when it cannot be listed.
std::vector<Checkpoint> list_checkpoints(const std::string& directory);

// Whole checkpoints that list_checkpoints() has read, by path. `manifests` changes when a manifest
// of the checkpoint, or of a rank's part of it, is removed, replaced or written to.
struct KnownCheckpoint {
  std::string manifests;
  Checkpoint checkpoint;
};
using KnownCheckpoints = std::map<std::string, KnownCheckpoint>;
// The list as above. Reads only checkpoints that are not in `known` or have changed since, because
// reading a manifest takes time in proportion to the model. Leaves what it found in `known`.
std::vector<Checkpoint> list_checkpoints(const std::string& directory, KnownCheckpoints& known);

// Path of the newest checkpoint in `directory`, in the line that was saved last; empty when there
// is none. Logs a warning that names the newest of another line. Throws StorageError when a damaged
// checkpoint may be newer; the error names the newest whole one.
std::string newest_checkpoint(const std::string& directory);
// Throws the StorageError of newest_checkpoint() when a damaged one among `found` has a step above
// that of `newest`, which may be null, or was saved later.
void check_none_damaged_after(const std::vector<Checkpoint>& found, const Checkpoint* newest);

// `directory` when it holds a committed state, else its newest checkpoint. Throws StorageError when
// it has neither.
std::string find_run(const std::string& directory);

}  // namespace sluice::models
