#pragma once
// The files that a run reads, given to train and plan. Thread-safe: free functions without state.

#include <cstdint>
#include <optional>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/library.hpp"

namespace sluice::cli {

// Throws InvalidArgument, with the flag and the reason, when a file cannot be read.
void require_files(const train::TrainRequest& run);

// Throws IoError or InvalidArgument when the file of --rates cannot be read or holds something
// else. Without that option there may be none.
void require_rates(const train::TrainRequest& run);

// Checks data and initial weights as training would. Returns the steps of the run: --steps, those
// of --epochs, or the smaller number; nothing where neither is given. Throws InvalidArgument.
std::optional<std::int64_t> check_data(const train::TrainRequest& run,
                                       const config::TrainConfig& config,
                                       const config::ModelConfig& model);

// With --epochs, a schedule whose total_num_steps is "auto" has the steps of check_data(). Does
// nothing where a file of the configuration or the model is a pipe, which can be read only once.
// Throws InvalidArgument.
void set_steps_of_epochs(train::TrainRequest& run);

}  // namespace sluice::cli
