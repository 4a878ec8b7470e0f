#include "step/step_end.hpp"

#include <cmath>
#include <optional>

#include "sluice/base/log.hpp"

namespace sluice::train {

BackwardResult result_of_backward(const RunResources& resources, const GradientFlow& gradients,
                                  double loss_sum, double loss_scale, const std::string& of) {
  BackwardResult result;
  const double share = 1.0 / static_cast<double>(resources.plan.config.gradient_accumulation_steps);
  const auto ranks = static_cast<double>(resources.plan.config.world_size);
  double totals[] = {gradients.squared_norm(), gradients.non_finite().empty() ? 0.0 : 1.0,
                     loss_sum * share};
  resources.communicator->all_reduce(totals, "norm and loss" + of);
  result.gradient_norm =
      std::sqrt(totals[0]) / (loss_scale * resources.plan.config.divisor_of_sum());
  result.loss = totals[2] / ranks;
  if (!std::isfinite(result.loss)) {
    result.non_finite = "the loss";
  } else if (totals[1] != 0.0) {
    result.non_finite = gradients.non_finite().empty()
                            ? "a gradient of another rank"
                            : "the gradient of " + gradients.non_finite();
  }
  result.updates_begun = gradients.updates_begun();
  return result;
}

bool is_finite_on_all_ranks(const RunResources& resources, double value) {
  double non_finite[] = {std::isfinite(value) ? 0.0 : 1.0};
  resources.communicator->all_reduce(non_finite, "whether the loss is finite");
  return non_finite[0] == 0.0;
}

UpdateSettings next_update(const RunResources& resources, const Progress& progress, bool ending) {
  const std::int64_t update = progress.updates + 1;
  UpdateSettings settings = settings_of_update(resources.plan, update, resources.rates->at(update));
  // Factor of an update that begins during backward.
  settings.step.gradient_factor = 1.0F / static_cast<float>(resources.plan.config.divisor_of_sum());
  settings.training_step = progress.step + 1;
  settings.commits = resources.commits(progress.step + 1, ending);
  return settings;
}

StepEnd end_step(const config::TrainConfig& config, const BackwardResult& backward,
                 const UpdateSettings& update, GradientFlow& gradients, Progress& progress) {
  LossScaler& scaler = progress.loss_scaler;
  const std::int64_t step = progress.step + 1;
  if (!backward.non_finite.empty()) {
    gradients.drop();
    const std::string found =
        "step " + std::to_string(step) + ": " + backward.non_finite + " is not finite";
    if (const auto stop = scaler.why_stop(config.sluice.non_finite)) {
      return {.updated = false,
              .why_stop = found + ", and " + stop->reason +
                          ": training stops before this update, at step " +
                          std::to_string(progress.step) + "; " + stop->advice};
    }
    log(LogLevel::warn, found + "; no update" + scaler.overflowed());
    progress.step = step;
    ++progress.order;
    return {};
  }
  UpdateSettings clipped = update;
  clipped.step.gradient_factor = gradient_factor(config.gradient_clipping, backward.gradient_norm,
                                                 scaler.scale() * config.divisor_of_sum());
  clipped.gradient_norm = backward.gradient_norm;
  if (!backward.updates_begun) gradients.begin_updates(clipped);
  scaler.updated();
  progress.step = step;
  ++progress.order;
  ++progress.updates;
  return {.updated = true, .why_stop = {}};
}

}  // namespace sluice::train
