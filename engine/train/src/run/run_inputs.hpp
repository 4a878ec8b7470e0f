#pragma once
// The inputs of a run: its two configuration files and its text. Nothing is allocated for them.
// Thread-compatible: callers synchronise.

#include <memory>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

struct Configuration {
  config::TrainConfig train;
  config::ModelConfig model;
};
// Throws InvalidArgument with the mistakes of both files.
Configuration load_configuration(const TrainRequest& request);

// Training text, and the evaluation text when there is one.
struct Data {
  std::unique_ptr<models::Dataset> train;
  std::unique_ptr<models::Dataset> separate_eval;
  bool has_eval = false;
  const models::Dataset& eval() const { return separate_eval ? *separate_eval : *train; }
};
// Throws InvalidArgument naming the file.
Data open_data(const TrainRequest& request, const Configuration& loaded);
// Steps of the whole run. Throws InvalidArgument when there is nothing to do.
std::int64_t total_steps(const TrainRequest& request, const Data& data);

}  // namespace sluice::train
