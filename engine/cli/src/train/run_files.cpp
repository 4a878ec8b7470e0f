#include "train/run_files.hpp"

#include "config/training_config.hpp"
#include "files/input_file.hpp"

namespace sluice::cli {

void require_files(const train::TrainRequest& run) {
  require_config("--config", run.config_path);
  for (const std::string& path : run.tuned_paths) require_file("--config", path);
  require_file("--model", run.model_path);
  for (const std::string& path : run.data_paths) require_file_or_folder("--data", path);
  if (run.init_path) require_file("--init", *run.init_path);
  if (run.evaluation.data_path) require_file_or_folder("--eval-data", *run.evaluation.data_path);
}

}  // namespace sluice::cli
