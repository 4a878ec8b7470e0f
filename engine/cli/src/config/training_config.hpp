#pragma once
// Loads the training configuration for the commands. Thread-safe: a free function without state.

#include <string>
#include <vector>

#include "sluice/config/train_config.hpp"

namespace sluice::cli {

// The configuration in `path`, with the keys of the files in `tuned_paths` over it. Throws
// config::ConfigError. Throws InvalidArgument when one of the files is a model's config.json,
// because a list of its keys as unknown would hide that mistake.
config::TrainConfig load_training_config(const std::string& path,
                                         const std::vector<std::string>& tuned_paths);

}  // namespace sluice::cli
