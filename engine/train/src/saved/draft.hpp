#pragma once
// Draft: the folder of a checkpoint while it is written, below the checkpoint directory. It gets
// its name when it is whole; then it replaces older checkpoints. The functions work on files only.
// With several ranks, rank 0 calls begin_draft, order_above, publish and remove_draft; the others
// know Draft::path.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sluice/models/checkpoints.hpp"
#include "step/progress.hpp"

namespace sluice::train {

struct Draft {
  std::string directory;
  std::int64_t step = 0;
  std::int64_t keep = 1;                   // checkpoints of the line, with this one
  std::vector<models::Checkpoint> before;  // of the line, oldest first
  std::int64_t last_saved_at = 0;          // of all lines in the directory (models::RunState)

  std::filesystem::path path() const;
};

// Makes the draft of `progress.step`, empty. Throws IoError. `known`: what the call before left.
Draft begin_draft(const std::string& directory, const Progress& progress, std::int64_t keep,
                  models::KnownCheckpoints& known);
// The order (models::RunState::order) that makes the draft's state the newest of its line in the
// folder, also when a run returned to an earlier step in between.
std::int64_t order_above(const Draft& draft, const Progress& progress);
// Makes a folder, but not its parents. Throws IoError.
void make_folder(const std::filesystem::path& folder);
// fsync of the files in a folder, and of the folder. Throws IoError.
void sync_tree(const std::filesystem::path& folder);
// Gives the whole draft its name, and removes what it replaces: the line's checkpoint of this step,
// and all but the newest `keep`. One that cannot be removed is a line in the log. Returns where the
// checkpoint is. Blocks. Throws IoError; then the older checkpoints are as before.
std::string publish(const Draft& draft);
// As far as it can.
void remove_draft(const Draft& draft);

}  // namespace sluice::train
