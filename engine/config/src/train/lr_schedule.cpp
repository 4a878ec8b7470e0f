#include "sluice/config/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "sluice/base/error.hpp"

namespace sluice::config {

namespace {

// DeepSpeed's `last_batch_iteration` at optimizer step `step`. The scheduler starts with -1 and
// advances after every step, so step 1 runs at -1, step 2 at 0.
std::int64_t iteration_at(std::int64_t step) {
  return step - 2;
}

std::int64_t warmup_steps(std::int64_t configured) {
  return std::max<std::int64_t>(2, configured);
}

// The warm-up's progress, in [0, 1), for 0 <= i < n. The order of operations is DeepSpeed's, so
// that the doubles are equal.
double warmup_gamma(WarmupType type, std::int64_t i, std::int64_t n) {
  if (type == WarmupType::linear) return static_cast<double>(i) / static_cast<double>(n);
  return 1.0 / std::log(static_cast<double>(n)) * std::log(static_cast<double>(i + 1));
}

double rate(const std::monostate&, double base_lr, std::int64_t) {
  return base_lr;
}

double rate(const WarmupLR& s, double base_lr, std::int64_t i) {
  if (i < 0) return s.warmup_min_lr;
  const std::int64_t n = warmup_steps(s.warmup_num_steps);
  const double gamma = i < n ? warmup_gamma(s.warmup_type, i, n) : 1.0;
  return s.warmup_min_lr + (s.warmup_max_lr.value_or(base_lr) - s.warmup_min_lr) * gamma;
}

double rate(const WarmupDecayLR& s, double, std::int64_t i) {
  if (i < 0) return s.warmup_min_lr;
  const std::int64_t n = warmup_steps(s.warmup_num_steps);
  const auto left = static_cast<double>(s.total_num_steps - i);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, s.total_num_steps - n));
  const double gamma = i < n ? warmup_gamma(s.warmup_type, i, n) : std::max(0.0, left / span);
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * gamma;
}

double rate(const WarmupCosineLR& s, double base_lr, std::int64_t i) {
  if (i < 0) return 0.0;
  const std::int64_t n = warmup_steps(s.warmup_num_steps);
  if (i < n) {
    const double gamma = warmup_gamma(s.warmup_type, i, n);
    return base_lr * (s.warmup_min_ratio + gamma * (1.0 - s.warmup_min_ratio));
  }
  const auto done = static_cast<double>(i - n + 1);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, s.total_num_steps - n));
  const double progress = std::min(1.0, done / span);
  const double cosine = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
  return base_lr * std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * cosine);
}

}  // namespace

double learning_rate(const SchedulerConfig& scheduler, double base_lr, std::int64_t step) {
  SLUICE_CHECK(step >= 1, "learning rate of step " + std::to_string(step) + ": steps count from 1");
  return std::visit([&](const auto& s) { return rate(s, base_lr, iteration_at(step)); }, scheduler);
}

}  // namespace sluice::config
