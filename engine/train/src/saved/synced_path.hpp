#pragma once
// Files and directories that survive loss of power. Thread-safe: free functions without state.

#include <filesystem>
#include <system_error>

namespace sluice::train {

// fsync of a file, or of the names in a directory. Blocks. Throws IoError.
void sync_path(const std::filesystem::path& path);
// Makes a directory and its missing parents. Their names survive loss of power: else what lies in
// them could be out of reach. Sets `error` where one cannot be made. Blocks. Throws IoError where
// one cannot be synced.
void make_directories(const std::filesystem::path& directory, std::error_code& error);

}  // namespace sluice::train
