#pragma once
// The directory of a run's checkpoints: made, locked, and synced with the drive. Thread-safe: free
// functions without state.

#include <filesystem>
#include <string>

#include "sluice/offload/directory_lock.hpp"

namespace sluice::train {

// Creates `directory` when it is absent and locks it for this run, so that two runs never mix their
// checkpoints. Its name and those of parents that it made survive loss of power. Removes drafts
// that a killed run left. Does nothing when `held` holds it already. Throws StorageError naming the
// process that holds the lock longer than `wait`, IoError when the directory cannot be created or
// written to.
void hold_checkpoint_directory(const std::string& directory, offload::HeldDirectories& held,
                               const offload::LockWait& wait = {});

// fsync of a file, or of the names in a directory. Throws IoError.
void sync_path(const std::filesystem::path& path);

}  // namespace sluice::train
