#pragma once
// The keys of the configuration for drives and directories.
// Thread-safe: free functions without state.

#include <string>

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Reads an "nvme_path": one directory, or a list of directories to stripe over. `key` is its path.
void read_nvme_path(Checker& checker, const std::string& key, OffloadConfig& offload);

// Reads sluice.io.drive_weights and sluice.drive_endurance.
void read_drives(Checker& checker, SluiceConfig& sluice);

// Checks that no directory has two conflicting uses.
void check_directories(Checker& checker, const TrainConfig& config);

}  // namespace sluice::config
