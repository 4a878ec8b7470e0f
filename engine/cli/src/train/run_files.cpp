#include "train/run_files.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "command/config_arguments.hpp"
#include "config/training_config.hpp"
#include "files/input_file.hpp"

#include "sluice/models/dataset.hpp"
#include "sluice/models/safetensors.hpp"

namespace sluice::cli {

void require_files(const train::TrainRequest& run) {
  require_config("--config", run.config_path);
  for (const std::string& path : run.tuned_paths) require_file("--config", path);
  require_file("--model", run.model_path);
  for (const std::string& path : run.data_paths) require_file_or_folder("--data", path);
  if (run.init_path) require_file("--init", *run.init_path);
  if (run.evaluation.data_path) require_file_or_folder("--eval-data", *run.evaluation.data_path);
}

bool is_file(const std::string& path) {
  std::error_code error;  // a configuration in base64 is too long for a name
  return std::filesystem::is_regular_file(path, error);
}

std::optional<std::int64_t> check_data(const train::TrainRequest& run,
                                       const config::TrainConfig& config,
                                       const config::ModelConfig& model) {
  const auto length = static_cast<std::uint64_t>(model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(model.vocab_size);
  std::optional<std::int64_t> steps = run.steps;
  if (!run.data_paths.empty()) {
    models::Dataset data(run.data_paths, length, vocabulary);
    if (run.evaluation.fraction) data.hold_out(*run.evaluation.fraction);
    if (run.epochs) {
      data.read_in_epochs(static_cast<std::uint64_t>(config.train_batch_size), config.drop_last);
      const std::int64_t all = data.steps_of(static_cast<std::uint64_t>(*run.epochs));
      steps = std::min(steps.value_or(all), all);
    }
  }
  if (run.evaluation.data_path)
    models::Dataset(*run.evaluation.data_path, length, vocabulary).evaluate_all();
  if (run.init_path) models::SafetensorsReader{*run.init_path};
  return steps;
}

void set_steps_of_epochs(train::TrainRequest& run) {
  if (!run.epochs) return;
  std::vector<std::string> files = run.tuned_paths;
  files.insert(files.end(), {run.config_path, run.model_path});
  if (!std::ranges::all_of(files, is_file)) return;
  config::LoadOptions options{.tuned_paths = run.tuned_paths, .settings = run.settings};
  options.settings.push_back(setting_of_steps(1, "--epochs"));
  const config::TrainConfig config = load_training_config(run.config_path, options);
  const std::optional<std::int64_t> steps =
      check_data(run, config, config::load_model_config(run.model_path));
  if (!steps) return;
  const config::Setting length = setting_of_steps(std::max<std::int64_t>(*steps, 1), "--epochs");
  // In place of that of --steps.
  std::erase_if(run.settings, [&](const config::Setting& setting) {
    return setting.only_auto && setting.key == length.key;
  });
  run.settings.push_back(length);
}

}  // namespace sluice::cli
