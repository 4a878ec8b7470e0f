#pragma once
// The keys of the configuration that are about drives and directories.
// Thread-safe: free functions without state.

#include <string>

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// `key` is the path of an "nvme_path": one directory, or a list of them to stripe over.
void read_nvme_path(Checker& checker, const std::string& key, OffloadConfig& offload);

// sluice.io.drive_weights and sluice.drive_endurance.
void read_drives(Checker& checker, SluiceConfig& sluice);

// That no directory is asked for twice in ways that are at odds.
void check_directories(Checker& checker, const TrainConfig& config);

}  // namespace sluice::config
