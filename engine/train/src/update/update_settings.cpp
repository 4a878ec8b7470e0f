#include "update/update_settings.hpp"

#include <algorithm>
#include <string>
#include <variant>

#include "sluice/base/error.hpp"
#include "sluice/config/lr_schedule.hpp"

namespace sluice::train {

namespace {

cpu_adam::AdamConfig adam_config(const config::OptimizerConfig& optimizer) {
  return {.beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .epsilon = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .decay = optimizer.type == config::OptimizerType::adamw ? cpu_adam::WeightDecay::decoupled
                                                                  : cpu_adam::WeightDecay::l2,
          .bias_correction = optimizer.bias_correction,
          .amsgrad = optimizer.amsgrad,
          .maximize = optimizer.maximize};
}

cpu_adam::OptimizerConfig config_without_rate(const config::OptimizerConfig& optimizer) {
  switch (optimizer.type) {
    case config::OptimizerType::adam:
    case config::OptimizerType::adamw:
      break;
    case config::OptimizerType::adagrad:
      return cpu_adam::AdagradConfig{.learning_rate_decay = optimizer.lr_decay,
                                     .epsilon = optimizer.eps,
                                     .weight_decay = optimizer.weight_decay,
                                     .maximize = optimizer.maximize};
    case config::OptimizerType::lion:
      return cpu_adam::LionConfig{.beta1 = optimizer.beta1,
                                  .beta2 = optimizer.beta2,
                                  .weight_decay = optimizer.weight_decay};
    case config::OptimizerType::sgd:
      return cpu_adam::SgdConfig{.momentum = optimizer.momentum,
                                 .dampening = optimizer.dampening,
                                 .weight_decay = optimizer.weight_decay,
                                 .nesterov = optimizer.nesterov,
                                 .maximize = optimizer.maximize};
  }
  return adam_config(optimizer);
}

void set_values(const GroupValues& values, cpu_adam::OptimizerConfig& optimizer) {
  std::visit(
      [&](auto& of) {
        of.learning_rate = values.learning_rate;
        of.weight_decay = values.weight_decay;
        if constexpr (requires { of.beta1; }) of.beta1 = values.beta1.value_or(of.beta1);
        if constexpr (requires { of.beta2; }) of.beta2 = values.beta2.value_or(of.beta2);
        if constexpr (requires { of.epsilon; }) of.epsilon = values.eps.value_or(of.epsilon);
        if constexpr (requires { of.momentum; })
          of.momentum = values.momentum.value_or(of.momentum);
        if constexpr (requires { of.dampening; })
          of.dampening = values.dampening.value_or(of.dampening);
      },
      optimizer);
}

}  // namespace

cpu_adam::OptimizerConfig kernel_config(const config::OptimizerConfig& optimizer,
                                        double learning_rate) {
  cpu_adam::OptimizerConfig kernel = config_without_rate(optimizer);
  std::visit([&](auto& of) { of.learning_rate = learning_rate; }, kernel);
  return kernel;
}

UpdateSettings settings_of_update(const plan::Plan& plan, std::int64_t update, double rate) {
  const double base = plan.config.optimizer.lr;
  UpdateSettings settings;
  settings.learning_rate = rate;
  settings.step = {.step = update, .seed = plan.config.sluice.seed};
  for (const models::ParamGroup& group : plan.groups.groups) {
    config::OptimizerConfig optimizer = group.optimizer;
    const config::Betas betas = config::betas_of_step(plan.config.scheduler, optimizer, update);
    optimizer.beta1 = betas.beta1;
    optimizer.beta2 = betas.beta2;
    const double own = optimizer.lr;
    settings.groups.push_back(kernel_config(optimizer, own == base ? rate : rate * (own / base)));
  }
  return settings;
}

// torch.nn.utils.clip_grad_norm_: factor = min(1, max_norm / (norm + 1e-6)).
float gradient_factor(double max_norm, double norm, double divisor) {
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  return static_cast<float>(clip / divisor);
}

void set_values(const std::vector<GroupValues>& groups, UpdateSettings& update) {
  if (groups.empty()) return;
  SLUICE_CHECK(groups.size() == update.groups.size(), "values of " + std::to_string(groups.size()) +
                                                          " parameter groups, and the plan has " +
                                                          std::to_string(update.groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i) set_values(groups[i], update.groups[i]);
}

}  // namespace sluice::train
