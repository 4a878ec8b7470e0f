#include "train/run_files.hpp"

#include <algorithm>
#include <vector>

#include "command/config_arguments.hpp"
#include "command/run_arguments.hpp"
#include "config/training_config.hpp"
#include "files/input_file.hpp"

#include "sluice/models/weight_reader.hpp"
#include "sluice/plan/rates.hpp"
#include "sluice/train/run_data.hpp"

namespace sluice::cli {

void require_files(const train::TrainRequest& run) {
  require_config("--config", run.config_path);
  for (const std::string& path : run.tuned_paths) require_file("--config", path);
  require_file("--model", run.model_path);
  for (const std::string& path : run.data_paths) require_file_or_folder("--data", path);
  if (run.init_path) require_file_or_folder("--init", *run.init_path);
  if (run.evaluation.data_path) require_file_or_folder("--eval-data", *run.evaluation.data_path);
}

void require_rates(const train::TrainRequest& run) {
  if (run.rates_path != default_rates_path()) plan::require_rates(run.rates_path);
}

std::optional<std::int64_t> check_data(const train::TrainRequest& run,
                                       const config::TrainConfig& config,
                                       const config::ModelConfig& model) {
  const train::Data data = train::open_data(run, config, model);
  if (run.init_path) models::WeightReader{*run.init_path};
  return train::asked_steps(run, data);
}

void set_steps_of_epochs(train::TrainRequest& run) {
  if (!run.epochs) return;
  std::vector<std::string> files = run.tuned_paths;
  files.insert(files.end(), {run.config_path, run.model_path});
  if (!std::ranges::all_of(files, is_file)) return;
  config::LoadOptions options{
      .world_size = run.place.size, .tuned_paths = run.tuned_paths, .settings = run.settings};
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
