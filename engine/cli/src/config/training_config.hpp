#pragma once
// Loads the training configuration for the commands. Thread-safe: a free function without state.

#include <string>

#include "sluice/config/train_config.hpp"

namespace sluice::cli {

// The configuration in `path`. Throws config::ConfigError. Throws InvalidArgument when one of the
// files is a model's config.json, because a list of its keys as unknown would hide that mistake.
config::TrainConfig load_training_config(const std::string& path, config::LoadOptions options);

// Throws InvalidArgument when `path` is neither a readable file nor a configuration in base64.
void require_config(const std::string& path);
void require_config(const std::string& flag, const std::string& path);

}  // namespace sluice::cli
