#include "step/loss_scaler.hpp"

#include <algorithm>

#include "sluice/base/text.hpp"

namespace sluice::train {

namespace {

constexpr double kFactor = 2;
// Scaled losses are fp32, which ends below 2^128. Gradients that are all zero never overflow.
constexpr double kMostScale = 0x1p127;

std::string shown(double scale) {
  return format_number("%.10g", scale);
}

}  // namespace

LossScaler::LossScaler(const config::Fp16Config& config) : config_(config) {
  if (config_.is_unpartitioned) {
    config_.hysteresis = 1;
    config_.consecutive_hysteresis = false;
  }
  state_.scale = config.enabled ? config.initial_scale() : 1;
  state_.hysteresis_left = config_.hysteresis;
}

std::optional<double> LossScaler::reported() const {
  return config_.enabled ? std::optional(state_.scale) : std::nullopt;
}

std::optional<LossScaler::Stop> LossScaler::why_stop(config::NonFinite non_finite) const {
  const bool at_minimum = is_dynamic() && state_.scale <= config_.min_loss_scale;
  if (at_minimum && state_.hysteresis_left <= 1 && !config_.is_unpartitioned) {
    return Stop{"the loss scale is at its minimum, " + shown(state_.scale),
                "look at the data and the learning rate, lower \"fp16\": {\"min_loss_scale\"} and "
                "--resume, or train in bf16, which has the range of fp32"};
  }
  // A smaller scale may cure the overflow.
  if (is_dynamic() && !at_minimum) return std::nullopt;
  if (non_finite == config::NonFinite::skip) return std::nullopt;
  return Stop{"\"sluice\": {\"non_finite\": \"stop\"} is set",
              "look at the data and the learning rate, or set \"skip\" and --resume"};
}

std::string LossScaler::overflowed() {
  if (!config_.enabled) return "";
  const double before = state_.scale;
  state_.good_steps = 0;
  if (!is_dynamic()) return "; loss scale " + shown(before) + ", as configured";
  if (state_.hysteresis_left > 1) {
    --state_.hysteresis_left;
    return "; loss scale " + shown(before) + ", now " + shown(before) + " (hysteresis)";
  }
  state_.scale = std::max(before / kFactor, config_.min_loss_scale);
  return "; loss scale " + shown(before) + ", now " + shown(state_.scale);
}

void LossScaler::updated() {
  if (!is_dynamic()) return;
  if (config_.consecutive_hysteresis) state_.hysteresis_left = config_.hysteresis;
  // The scale doubles at the first good step after a whole window.
  if (state_.good_steps > 0 && state_.good_steps % config_.loss_scale_window == 0) {
    state_.hysteresis_left = config_.hysteresis;
    state_.scale = std::min(state_.scale * kFactor, kMostScale);
  }
  ++state_.good_steps;
}

std::optional<models::LossScaleState> LossScaler::state() const {
  return is_dynamic() ? std::optional(state_) : std::nullopt;
}

void LossScaler::restore(const std::optional<models::LossScaleState>& state) {
  *this = LossScaler(config_);
  if (!is_dynamic() || !state) return;
  state_ = *state;
  state_.scale = std::max(state_.scale, config_.min_loss_scale);
  state_.hysteresis_left = std::min(state_.hysteresis_left, config_.hysteresis);
}

}  // namespace sluice::train
