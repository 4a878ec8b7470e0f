#include "run/run_inputs.hpp"

#include <string>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"

namespace sluice::train {

Configuration load_configuration(const TrainRequest& request) {
  Configuration loaded;
  std::string mistakes;
  try {
    loaded.train =
        config::load_train_config(request.config_path, {.world_size = request.place.size,
                                                        .tuned_paths = request.tuned_paths,
                                                        .settings = request.settings,
                                                        .has_flags = true});
    loaded.train.rank = request.place.rank;
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

void say_epochs(const models::Dataset& data, std::int64_t epochs,
                const config::TrainConfig& config) {
  const auto batch = static_cast<std::uint64_t>(config.train_batch_size);
  const std::uint64_t all = checked_mul(data.epoch_sequences(), static_cast<std::uint64_t>(epochs));
  const std::uint64_t left_over = all % batch;
  log(LogLevel::info,
      counted(epochs, "epoch") + " of " + format_count(data.epoch_sequences()) + " sequences: " +
          format_count(
              static_cast<std::uint64_t>(data.steps_of(static_cast<std::uint64_t>(epochs)))) +
          " steps of " + format_count(batch) +
          (left_over == 0 ? ""
                          : ", and " + format_count(left_over) +
                                " left over, less than a batch, which are not trained on"));
}

}  // namespace

Data open_data(const TrainRequest& request, const Configuration& loaded) {
  Data data = open_data(request, loaded.train, loaded.model);
  say_what_is_read(*data.train, loaded.model);
  if (request.epochs) {
    say_epochs(*data.train, *request.epochs, loaded.train);
  } else if (loaded.train.drop_last) {
    log(LogLevel::info, "\"dataloader_drop_last\" has no effect without --epochs");
  }
  return data;
}

std::int64_t total_steps(const TrainRequest& request, const Data& data) {
  const std::int64_t steps = asked_steps(request, data).value_or(kDefaultSteps);
  SLUICE_CHECK(steps >= 0, "--steps must not be negative");
  SLUICE_CHECK(steps > 0 || data.has_eval,
               "--steps 0 evaluates only: it needs --eval-data or --eval-fraction");
  return steps;
}

void check_schedule(const config::TrainConfig& config, std::int64_t steps) {
  const std::optional<std::int64_t> last = config::last_step_of_betas(config.scheduler);
  SLUICE_CHECK(!last || steps <= *last,
               "scheduler.params.decay_mom_rate: beta1 grows to 1 after step " +
                   std::to_string(*last) + ", and the run has " + std::to_string(steps) +
                   " steps; lower it, or give --steps " + std::to_string(*last));
  const std::string at_zero = config::steps_at_zero(config.scheduler, steps);
  if (!at_zero.empty() && config.rank == 0) log(LogLevel::warn, at_zero);
}

}  // namespace sluice::train
