#include "config/training_config.hpp"

#include <algorithm>

#include "sluice/base/error.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::cli {

namespace {

// Every model file has the key "model_type", and no training configuration has it.
bool has_model_type(const config::ConfigError& error) {
  return std::ranges::any_of(error.problems(), [](const config::Problem& problem) {
    return problem.key_path == "model_type";
  });
}

}  // namespace

config::TrainConfig load_training_config(const std::string& path,
                                         const std::vector<std::string>& tuned_paths) {
  try {
    return config::load_train_config(path, {.tuned_paths = tuned_paths});
  } catch (const config::ConfigError& error) {
    if (!has_model_type(error)) throw;
    const std::string text = error.what();  // begins with the file's name
    throw InvalidArgument(text.substr(0, text.find(':')) +
                          ": this looks like a model's config.json (it has \"model_type\"), which "
                          "--model takes; expected a training configuration");
  }
}

}  // namespace sluice::cli
