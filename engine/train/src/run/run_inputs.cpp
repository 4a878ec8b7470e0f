#include "run/run_inputs.hpp"

#include <algorithm>
#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"

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

namespace {

constexpr std::int64_t kDefaultSteps = 1000;

void say_what_is_read(const models::Dataset& data, const config::ModelConfig& model) {
  if (data.file_count() > 1) {
    const std::size_t left_out = data.short_files();
    log(LogLevel::info, data.name() + ": " + format_count(data.file_count()) + " files of " +
                            format_count(data.token_count()) + " tokens" +
                            (left_out == 0 ? ""
                                           : "; " + format_count(left_out) +
                                                 " are shorter than a sequence and left out"));
  }
  if (data.token_bytes() == 1 && model.vocab_size > 256) {
    log(LogLevel::info, data.name() + " is read as bytes, tokens 0 to 255 of the model's " +
                            std::to_string(model.vocab_size) +
                            "; a file of uint16 tokens is named .bin, one of uint32 tokens .u32");
  }
}

void read_in_epochs(models::Dataset& data, std::int64_t epochs, const config::TrainConfig& config) {
  SLUICE_CHECK(epochs > 0, "--epochs must be at least 1");
  const auto batch = static_cast<std::uint64_t>(config.train_batch_size);
  data.read_in_epochs(batch, config.drop_last);
  const std::uint64_t all = checked_mul(data.epoch_sequences(), static_cast<std::uint64_t>(epochs));
  const std::uint64_t left_over = all % batch;
  log(LogLevel::info,
      std::to_string(epochs) + (epochs == 1 ? " epoch of " : " epochs of ") +
          format_count(data.epoch_sequences()) + " sequences: " +
          format_count(
              static_cast<std::uint64_t>(data.steps_of(static_cast<std::uint64_t>(epochs)))) +
          " steps of " + format_count(batch) +
          (left_over == 0 ? ""
                          : ", and " + format_count(left_over) +
                                " left over, less than a batch, which are not trained on"));
}

}  // namespace

Data open_data(const TrainRequest& request, const Configuration& loaded) {
  SLUICE_CHECK(!(request.evaluation.data_path && request.evaluation.fraction),
               "--eval-data and --eval-fraction exclude each other");
  const auto length = static_cast<std::uint64_t>(loaded.model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(loaded.model.vocab_size);
  Data data;
  data.train = std::make_unique<models::Dataset>(request.data_paths, length, vocabulary);
  if (request.evaluation.fraction) data.train->hold_out(*request.evaluation.fraction);
  if (request.evaluation.data_path) {
    data.separate_eval =
        std::make_unique<models::Dataset>(*request.evaluation.data_path, length, vocabulary);
    data.separate_eval->evaluate_all();
  }
  say_what_is_read(*data.train, loaded.model);
  if (request.epochs) {
    read_in_epochs(*data.train, *request.epochs, loaded.train);
  } else if (loaded.train.drop_last) {
    log(LogLevel::info, "\"dataloader_drop_last\" has no effect without --epochs");
  }
  data.has_eval = request.evaluation.fraction || request.evaluation.data_path;
  return data;
}

std::int64_t total_steps(const TrainRequest& request, const Data& data) {
  std::int64_t steps = request.steps.value_or(kDefaultSteps);
  if (request.epochs) {
    const std::int64_t all = data.train->steps_of(static_cast<std::uint64_t>(*request.epochs));
    steps = std::min(request.steps.value_or(all), all);
  }
  SLUICE_CHECK(steps >= 0, "--steps must not be negative");
  SLUICE_CHECK(steps > 0 || data.has_eval,
               "--steps 0 evaluates only: it needs --eval-data or --eval-fraction");
  return steps;
}

}  // namespace sluice::train
