#include "run/run_inputs.hpp"

#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::train {

Configuration load_configuration(const TrainRequest& request) {
  Configuration loaded;
  std::string mistakes;
  try {
    loaded.train = config::load_train_config(
        request.config_path, {.tuned_paths = request.tuned_paths, .settings = request.settings});
  } catch (const InvalidArgument& error) {
    mistakes = error.what();
  }
  try {
    loaded.model = config::load_model_config(request.model_path);
  } catch (const InvalidArgument& error) {
    mistakes += (mistakes.empty() ? "" : "\n") + std::string(error.what());
  }
  if (!mistakes.empty()) throw InvalidArgument(mistakes);
  return loaded;
}

Data open_data(const TrainRequest& request, const config::ModelConfig& model) {
  SLUICE_CHECK(!(request.eval_data_path && request.eval_fraction),
               "--eval-data and --eval-fraction exclude each other");
  const auto length = static_cast<std::uint64_t>(model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(model.vocab_size);
  Data data;
  data.train = std::make_unique<models::Dataset>(request.data_path, length, vocabulary);
  if (request.eval_fraction) data.train->hold_out(*request.eval_fraction);
  if (request.eval_data_path) {
    data.separate_eval =
        std::make_unique<models::Dataset>(*request.eval_data_path, length, vocabulary);
    data.separate_eval->evaluate_all();
  }
  if (!data.train->is_tokens() && model.vocab_size > 256) {
    log(LogLevel::info, request.data_path + " is read as bytes, tokens 0 to 255 of the model's " +
                            std::to_string(model.vocab_size) +
                            "; a file of uint16 tokens is named .bin");
  }
  data.has_eval = request.eval_fraction || request.eval_data_path;
  return data;
}

}  // namespace sluice::train
