#include "update/update_settings.hpp"

#include <algorithm>

#include "sluice/config/lr_schedule.hpp"

namespace sluice::train {

UpdateSettings settings_of_update(const config::TrainConfig& config, std::int64_t update) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  const config::Betas betas = config::betas_of_step(config, update);
  const cpu_adam::AdamConfig adam{.learning_rate = config::learning_rate(config, update),
                                  .beta1 = betas.beta1,
                                  .beta2 = betas.beta2,
                                  .epsilon = optimizer.eps,
                                  .weight_decay = optimizer.weight_decay,
                                  .decay = optimizer.type == config::OptimizerType::adamw
                                               ? cpu_adam::WeightDecay::decoupled
                                               : cpu_adam::WeightDecay::l2,
                                  .bias_correction = optimizer.bias_correction};
  return {adam, {.step = update, .seed = config.sluice.seed}};
}

// torch.nn.utils.clip_grad_norm_: factor = min(1, max_norm / (norm + 1e-6)).
float gradient_factor(double max_norm, double norm, double loss_scale) {
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  return static_cast<float>(clip / loss_scale);
}

}  // namespace sluice::train
