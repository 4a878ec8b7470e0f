#include "config/training_config.hpp"

#include <algorithm>

#include "files/input_file.hpp"
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

config::TrainConfig load_training_config(const std::string& path, config::LoadOptions options) {
  options.has_flags = true;
  try {
    return config::load_train_config(path, options);
  } catch (const config::ConfigError& error) {
    if (!has_model_type(error)) throw;
    const std::string text = error.what();  // begins with the file's name
    throw InvalidArgument(text.substr(0, text.find(':')) +
                          ": this looks like a model's config.json (it has \"model_type\"), which "
                          "--model takes; expected a training configuration");
  }
}

void require_config(const std::string& path) {
  if (config::decoded_config(path).empty()) require_file(path);
}
void require_config(const std::string& flag, const std::string& path) {
  if (config::decoded_config(path).empty()) require_file(flag, path);
}

}  // namespace sluice::cli
