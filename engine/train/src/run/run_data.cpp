#include "sluice/train/run_data.hpp"

#include <algorithm>

#include "sluice/base/error.hpp"

namespace sluice::train {

Data open_data(const TrainRequest& request, const config::TrainConfig& config,
               const config::ModelConfig& model) {
  const TrainRequest::Evaluation& evaluation = request.evaluation;
  SLUICE_CHECK(!(evaluation.data_path && evaluation.fraction),
               "--eval-data and --eval-fraction exclude each other");
  SLUICE_CHECK(!request.epochs || *request.epochs > 0, "--epochs must be at least 1");
  const auto length = static_cast<std::uint64_t>(model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(model.vocab_size);
  Data data;
  if (!request.data_paths.empty()) {
    data.train = std::make_unique<models::Dataset>(request.data_paths, length, vocabulary);
    if (evaluation.fraction) data.train->hold_out(*evaluation.fraction);
  }
  if (evaluation.data_path) {
    data.separate_eval =
        std::make_unique<models::Dataset>(*evaluation.data_path, length, vocabulary);
    data.separate_eval->evaluate_all();
  }
  data.has_eval = evaluation.fraction || evaluation.data_path;
  if (data.train && request.epochs) {
    data.train->read_in_epochs(static_cast<std::uint64_t>(config.train_batch_size),
                               config.drop_last);
  }
  return data;
}

std::optional<std::int64_t> asked_steps(const TrainRequest& request, const Data& data) {
  if (!data.train || !request.epochs) return request.steps;
  const std::int64_t all = data.train->steps_of(static_cast<std::uint64_t>(*request.epochs));
  return std::min(request.steps.value_or(all), all);
}

}  // namespace sluice::train
