#include "train/run_files.hpp"

#include "config/training_config.hpp"
#include "files/input_file.hpp"

namespace sluice::cli {

void require_files(const train::TrainRequest& run) {
  require_config("--config", run.config_path);
  for (const std::string& path : run.tuned_paths) require_file("--config", path);
  require_file("--model", run.model_path);
  if (!run.data_path.empty()) require_file("--data", run.data_path);
  if (run.init_path) require_file("--init", *run.init_path);
  if (run.eval_data_path) require_file("--eval-data", *run.eval_data_path);
}

}  // namespace sluice::cli
