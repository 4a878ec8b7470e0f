#pragma once
// The directory of a run's checkpoints: made, locked, and seen by all ranks. The
// functions are thread-safe; a DirectoryMark is thread-compatible.

#include <string>

#include "sluice/offload/directory_lock.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

// Creates `directory` when it is absent and locks it for this run, so that two runs never mix their
// checkpoints. Its name and those of parents that it made survive loss of power. Removes drafts
// that a killed run left. Does nothing when `held` holds it already. Throws StorageError naming the
// process that holds the lock longer than `wait`, IoError when the directory cannot be created or
// written to, InvalidArgument when its name is too long for the files of a checkpoint.
void hold_checkpoint_directory(const std::string& directory, offload::HeldDirectories& held,
                               const offload::LockWait& wait = {});

// A folder that rank 0 makes in a checkpoint directory for a moment, so that the other ranks find
// out whether they have that directory. Its name is random, and is that of a draft: the next run
// removes it if this one is killed.
class DirectoryMark {
 public:
  // Throws IoError.
  explicit DirectoryMark(const std::string& directory);
  ~DirectoryMark();
  DirectoryMark(const DirectoryMark&) = delete;
  DirectoryMark& operator=(const DirectoryMark&) = delete;
  // For the other ranks.
  const std::string& text() const { return text_; }

 private:
  std::string path_;
  std::string text_;
};
// How the directory of `rank` differs from that in which rank 0 made the mark of `text`; empty:
// this rank sees the mark. Waits some seconds before it says that it does not.
std::string find_why_not_shared(const std::string& directory, const std::string& text, int rank);
// Throws InvalidArgument on the ranks whose checkpoint directory is not that of rank 0, and
// RankFailure on the others. All ranks call it. Blocks.
void require_shared_directory(zero::Communicator& ranks, const std::string& directory);

}  // namespace sluice::train
