#pragma once
// Files and directories that survive loss of power. Thread-safe: free functions without state.

#include <filesystem>
#include <string>
#include <system_error>

#include "sluice/base/written.hpp"

namespace sluice::train {

// As sync_path() of a directory, for what a run can lose without its states: where the directory
// may be written and not listed, no names in it can be synced, and the log says so.
void sync_names_of_report(const std::string& directory);
// Makes a directory and its missing parents. Their names survive loss of power: else what lies in
// them could be out of reach. Sets `error` where one cannot be made. Blocks. `sync` is called
// for each directory that a name is new in, and its errors are thrown.
void make_directories(const std::filesystem::path& directory, std::error_code& error,
                      void (*sync)(const std::string&) = sync_path);

}  // namespace sluice::train
