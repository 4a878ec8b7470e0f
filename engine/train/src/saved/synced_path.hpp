#pragma once
// Files and directories that survive loss of power. Thread-safe: free functions without state.

#include <filesystem>
#include <system_error>

namespace sluice::train {

// fsync of a file, or of the names in a directory. Blocks. Throws IoError.
void sync_path(const std::filesystem::path& path);
// As sync_path() of a directory, for what a run can lose without its states: where the directory
// may be written and not listed, no names in it can be synced, and the log says so.
void sync_names_of_report(const std::filesystem::path& directory);
// Makes a directory and its missing parents. Their names survive loss of power: else what lies in
// them could be out of reach. Sets `error` where one cannot be made. Blocks. `sync` is called
// for each directory that a name is new in, and its errors are thrown.
void make_directories(const std::filesystem::path& directory, std::error_code& error,
                      void (*sync)(const std::filesystem::path&) = sync_path);

}  // namespace sluice::train
