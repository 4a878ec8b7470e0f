// Constants of a step: equal for all its elements.

#include "constants.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::cpu_adam {

namespace {

// Schedules that compute a rate from the one before may end at -1e-20 where their formula ends at
// 0. Their rounding leaves less than this.
constexpr double kRoundingOfRates = 1e-12;

double rate_in_update(double learning_rate) {
  return learning_rate < 0 && learning_rate >= -kRoundingOfRates ? 0 : learning_rate;
}

// Checks values of one optimizer and rounds them to fp32.
class Checker {
 public:
  explicit Checker(const char* optimizer) : optimizer_(optimizer) {}

  void not_negative(double value, const char* name) const {
    SLUICE_CHECK(std::isfinite(value) && value >= 0,
                 text(value, name) + "; it must be finite and at least 0");
  }
  // Also beyond fp32, whatever a step makes of the value.
  void fits(double value, const char* name) const {
    not_negative(value, name);
    fp32(value, name);
  }
  void below_one(double value, const char* name) const {
    SLUICE_CHECK(value >= 0 && value < 1, text(value, name) + "; it must be in [0, 1)");  // NaN too
  }
  // An epsilon that fp32 rounds to 0 would divide by 0.
  void epsilon_not_lost(double value, float rounded) const {
    SLUICE_CHECK(value == 0 || rounded != 0,
                 text(value, "epsilon") + ", which is 0 in fp32; give 0 or a larger one");
  }
  float fp32(double value, const char* name) const {
    const auto rounded = static_cast<float>(value);
    SLUICE_CHECK(std::isfinite(rounded), text(value, name) + ", which fp32 cannot hold");
    return rounded;
  }

 private:
  std::string text(double value, const char* name) const {
    return std::string(optimizer_) + ": " + name + " is " + shortest_number(value);
  }
  const char* optimizer_;
};

// Factor of decoupled decay: 1 - rate * decay.
float keep_of(const Checker& check, double learning_rate, double weight_decay) {
  return check.fp32(1 - learning_rate * weight_decay, "1 - learning_rate * weight_decay");
}

void set_betas(const Checker& check, double beta1, double beta2, StepConstants& out) {
  check.below_one(beta1, "beta1");
  check.below_one(beta2, "beta2");
  out.beta1 = static_cast<float>(beta1);
  out.one_minus_beta1 = static_cast<float>(1 - beta1);
  out.beta2 = static_cast<float>(beta2);
  out.one_minus_beta2 = static_cast<float>(1 - beta2);
}

StepConstants constants(const AdamConfig& config, std::int64_t step) {
  const Checker check("Adam");
  check.fits(config.learning_rate, "learning_rate");
  check.not_negative(config.epsilon, "epsilon");
  check.fits(config.weight_decay, "weight_decay");
  StepConstants out{};
  set_betas(check, config.beta1, config.beta2, out);
  // Bias corrections: Kingma & Ba 2015, section 3.
  const auto t = static_cast<double>(step);
  const double correction1 = config.bias_correction ? 1 - std::pow(config.beta1, t) : 1;
  const double correction2 = config.bias_correction ? 1 - std::pow(config.beta2, t) : 1;
  const bool decoupled = config.decay == WeightDecay::decoupled;
  out.l2 = check.fp32(decoupled ? 0 : config.weight_decay, "weight_decay");
  out.keep = decoupled ? keep_of(check, config.learning_rate, config.weight_decay) : 1;
  // m / c1 / (sqrt(v / c2) + epsilon) = (sqrt(c2) / c1) m / (sqrt(v) + sqrt(c2) epsilon).
  const double root = std::sqrt(correction2);
  check.epsilon_not_lost(config.epsilon, check.fp32(config.epsilon, "epsilon"));
  const double least = config.epsilon > 0 ? std::numeric_limits<float>::denorm_min() : 0;
  out.epsilon = static_cast<float>(std::max(config.epsilon * root, least));
  out.step_size = check.fp32(config.learning_rate * root / correction1,
                             "learning_rate * sqrt(1 - beta2^step) / (1 - beta1^step)");
  return out;
}

StepConstants constants(const AdagradConfig& config, std::int64_t step) {
  const Checker check("Adagrad");
  check.fits(config.learning_rate, "learning_rate");
  check.not_negative(config.learning_rate_decay, "learning_rate_decay");
  check.not_negative(config.epsilon, "epsilon");
  check.fits(config.weight_decay, "weight_decay");
  StepConstants out{};
  out.l2 = check.fp32(config.weight_decay, "weight_decay");
  out.epsilon = check.fp32(config.epsilon, "epsilon");
  check.epsilon_not_lost(config.epsilon, out.epsilon);
  const double steps_before = static_cast<double>(step) - 1;
  out.step_size = check.fp32(config.learning_rate / (1 + steps_before * config.learning_rate_decay),
                             "learning_rate");
  return out;
}

StepConstants constants(const LionConfig& config, std::int64_t) {
  const Checker check("Lion");
  check.fits(config.learning_rate, "learning_rate");
  check.fits(config.weight_decay, "weight_decay");
  StepConstants out{};
  out.keep = keep_of(check, config.learning_rate, config.weight_decay);
  set_betas(check, config.beta1, config.beta2, out);
  out.step_size = check.fp32(config.learning_rate, "learning_rate");
  return out;
}

StepConstants constants(const SgdConfig& config, std::int64_t step) {
  const Checker check("SGD");
  check.fits(config.learning_rate, "learning_rate");
  check.not_negative(config.momentum, "momentum");
  check.not_negative(config.dampening, "dampening");
  check.fits(config.weight_decay, "weight_decay");
  SLUICE_CHECK(!config.nesterov || (config.momentum > 0 && config.dampening == 0),
               "SGD: nesterov needs a momentum above 0 and no dampening; they are " +
                   shortest_number(config.momentum) + " and " + shortest_number(config.dampening));
  StepConstants out{};
  out.l2 = check.fp32(config.weight_decay, "weight_decay");
  out.beta1 = check.fp32(config.momentum, "momentum");
  // The first step sets the buffer, which is 0 before, to its gradient without dampening.
  const float undamped = check.fp32(1 - config.dampening, "1 - dampening");
  out.one_minus_beta1 = step == 1 ? 1 : undamped;
  out.step_size = check.fp32(config.learning_rate, "learning_rate");
  out.nesterov = config.nesterov;
  return out;
}

}  // namespace

StepConstants constants_of(const OptimizerConfig& config, const Step& step) {
  SLUICE_CHECK(step.step >= 1, "step is " + std::to_string(step.step) + "; steps count from 1");
  SLUICE_CHECK(std::isfinite(step.gradient_factor),
               "gradient_factor is " + shortest_number(step.gradient_factor) +
                   "; it must be finite: skip the step when the norm is not");
  const auto constants_with_rate = [&](auto of) {
    of.learning_rate = rate_in_update(of.learning_rate);
    return constants(of, step.step);
  };
  StepConstants out = std::visit(constants_with_rate, config);
  const bool maximize = std::visit([](const auto& of) { return of.maximize; }, config);
  out.has_l2 = out.l2 != 0;
  out.gradient_factor = maximize ? -step.gradient_factor : step.gradient_factor;
  return out;
}

Rule rule_of(const OptimizerConfig& config) {
  if (const auto* adam = std::get_if<AdamConfig>(&config))
    return adam->amsgrad ? Rule::amsgrad : Rule::adam;
  if (const auto* sgd = std::get_if<SgdConfig>(&config))
    return sgd->momentum != 0 ? Rule::momentum : Rule::sgd;
  return std::holds_alternative<LionConfig>(config) ? Rule::lion : Rule::adagrad;
}

std::size_t moment_count(const OptimizerConfig& config) {
  return moment_count(rule_of(config));
}

std::size_t moment_count(Rule rule) {
  switch (rule) {
    case Rule::adam:
      return 2;
    case Rule::amsgrad:
      return 3;
    case Rule::sgd:
      return 0;
    case Rule::adagrad:
    case Rule::lion:
    case Rule::momentum:
      break;
  }
  return 1;
}

void check_values(const OptimizerConfig& config) {
  static_cast<void>(constants_of(config, {}));
}

}  // namespace sluice::cpu_adam
