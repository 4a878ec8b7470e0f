#pragma once
// The inputs of a run: its two configuration files and its text. Nothing is allocated for them.
// Thread-compatible: callers synchronise.

#include <cstdint>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/train/library.hpp"
#include "sluice/train/run_data.hpp"

namespace sluice::train {

struct Configuration {
  config::TrainConfig train;
  config::ModelConfig model;
};
// Throws InvalidArgument with the mistakes of both files.
Configuration load_configuration(const TrainRequest& request);

// As open_data() of run_data.hpp, and logs what is read.
Data open_data(const TrainRequest& request, const Configuration& loaded);
// Steps of the whole run. Throws InvalidArgument when there is nothing to do.
std::int64_t total_steps(const TrainRequest& request, const Data& data);
// Throws InvalidArgument when the schedule has no betas for so many steps. Rank 0 warns when it
// ends before them at a rate of 0.
void check_schedule(const config::TrainConfig& config, std::int64_t steps);

}  // namespace sluice::train
