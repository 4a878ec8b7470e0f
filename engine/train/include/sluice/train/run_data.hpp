#pragma once
// The data of a run, for the library and for the command line. No LibTorch.
// Thread-compatible: callers synchronise.

#include <cstdint>
#include <memory>
#include <optional>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Training data, and the evaluation data when there is any.
struct Data {
  std::unique_ptr<models::Dataset> train;  // null without data_paths
  std::unique_ptr<models::Dataset> separate_eval;
  bool has_eval = false;
  const models::Dataset& eval() const { return separate_eval ? *separate_eval : *train; }
};
// Throws InvalidArgument naming the file.
Data open_data(const TrainRequest& request, const config::TrainConfig& config,
               const config::ModelConfig& model);
// Steps of a run that asks for none.
inline constexpr std::int64_t kDefaultSteps = 1000;
// The steps that the request asks for: `steps`, those of `epochs`, or the smaller number. Empty
// when it has neither. Throws InvalidArgument.
std::optional<std::int64_t> asked_steps(const TrainRequest& request, const Data& data);

}  // namespace sluice::train
