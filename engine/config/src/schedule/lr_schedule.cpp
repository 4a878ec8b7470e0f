// DeepSpeed's schedules. torch's: torch_schedule.cpp. The order of operations is that of the
// originals, so that the doubles are equal.
#include "sluice/config/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "schedule/torch_schedule.hpp"
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

// The warm-up's progress, in [0, 1), for 0 <= i < n.
double warmup_gamma(WarmupType type, std::int64_t i, std::int64_t n) {
  if (type == WarmupType::linear) return static_cast<double>(i) / static_cast<double>(n);
  return 1.0 / std::log(static_cast<double>(n)) * std::log(static_cast<double>(i + 1));
}

double rate(const std::monostate&, double base_lr, std::int64_t) {
  return base_lr;
}

double rate(const WarmupLR& s, double base_lr, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
  if (i < 0) return s.warmup_min_lr;
  const std::int64_t n = warmup_steps(s.warmup_num_steps);
  const double gamma = i < n ? warmup_gamma(s.warmup_type, i, n) : 1.0;
  return s.warmup_min_lr + (s.warmup_max_lr.value_or(base_lr) - s.warmup_min_lr) * gamma;
}

double rate(const WarmupDecayLR& s, double, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
  if (i < 0) return s.warmup_min_lr;
  const std::int64_t n = warmup_steps(s.warmup_num_steps);
  const auto left = static_cast<double>(s.total_num_steps - i);
  const auto span = static_cast<double>(std::max<std::int64_t>(1, s.total_num_steps - n));
  const double gamma = i < n ? warmup_gamma(s.warmup_type, i, n) : std::max(0.0, left / span);
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * gamma;
}

double rate(const WarmupCosineLR& s, double base_lr, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
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

// One cycle of `OneCycle`. Its sizes are doubles in DeepSpeed too.
struct Cycle {
  double first;
  double second;
  double total;

  explicit Cycle(const OneCycle& s)
      : first(static_cast<double>(s.cycle_first_step_size)),
        second(static_cast<double>(s.cycle_second_step_size)),
        total(first + second) {}
};

// The share of the way from the minimum to the maximum, by stairs where there are any.
double cycle_scale(const OneCycle& s, std::int64_t i) {
  const Cycle cycle(s);
  const auto at = static_cast<double>(i + 1);
  const double ratio = cycle.first / cycle.total;
  const double x = 1.0 + at / cycle.total - std::floor(1 + at / cycle.total);
  const bool rises = x <= ratio;
  const std::int64_t stairs = rises ? s.cycle_first_stair_count : s.cycle_second_stair_count;
  if (stairs == 0) return rises ? x / ratio : (x - 1) / (ratio - 1);
  const auto count = static_cast<double>(stairs);
  const double place = std::fmod(at, cycle.total);
  const double stair = place <= cycle.first ? place * count / cycle.first
                                            : (cycle.total - place) * count / cycle.second;
  return std::floor(stair) / count;
}

bool is_in_cycle(const OneCycle& s, std::int64_t i) {
  return static_cast<double>(i) < Cycle(s).total;
}

// Decay intervals since the end of the cycle.
double decay_interval(const OneCycle& s, std::int64_t i) {
  return (static_cast<double>(i) - Cycle(s).total + 1) / static_cast<double>(s.decay_step_size);
}

double rate(const OneCycle& s, double, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
  if (i < 0) return s.cycle_min_lr;
  if (is_in_cycle(s, i))
    return s.cycle_min_lr + (s.cycle_max_lr - s.cycle_min_lr) * cycle_scale(s, i);
  if (s.decay_step_size == 0 || s.decay_lr_rate == 0) return s.cycle_min_lr;
  return s.cycle_min_lr / (1 + s.decay_lr_rate * decay_interval(s, i));
}

bool decays_momentum(const OneCycle& s) {
  return s.decay_step_size > 0 && s.decay_mom_rate > 0 && s.cycle_max_mom > 0;
}

double momentum(const OneCycle& s, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
  if (i < 0) return s.cycle_min_mom;
  if (is_in_cycle(s, i))
    return s.cycle_max_mom - (s.cycle_max_mom - s.cycle_min_mom) * cycle_scale(s, i);
  if (!decays_momentum(s)) return s.cycle_max_mom;
  return s.cycle_max_mom * (1 + s.decay_mom_rate * decay_interval(s, i));
}

double rate(const LRRangeTest& s, double, std::int64_t step) {
  const std::int64_t i = iteration_at(step);
  if (i < 0) return s.lr_range_test_min_lr;
  const double interval =
      static_cast<double>(i + 1) / static_cast<double>(s.lr_range_test_step_size);
  return s.lr_range_test_min_lr *
         (1 + s.lr_range_test_step_rate *
                  (s.lr_range_test_staircase ? std::floor(interval) : interval));
}

// The end of a schedule whose rate is 0 from there on, and not before.
struct EndAtZero {
  std::int64_t last_step;      // above 0
  std::string_view parameter;  // that sets it
  std::int64_t value;
};

template <typename Schedule>
std::optional<EndAtZero> end_at_zero(const Schedule&) {
  return {};
}
std::optional<EndAtZero> end_at_zero(const WarmupDecayLR& s) {
  if (s.warmup_min_lr != 0 || s.warmup_max_lr == 0) return {};
  return EndAtZero{std::max(s.total_num_steps, warmup_steps(s.warmup_num_steps)) + 1,
                   "total_num_steps", s.total_num_steps};
}
std::optional<EndAtZero> end_at_zero(const WarmupCosineLR& s) {
  if (s.cos_min_ratio != 0) return {};
  return EndAtZero{std::max(s.total_num_steps, warmup_steps(s.warmup_num_steps) + 1),
                   "total_num_steps", s.total_num_steps};
}
std::optional<EndAtZero> end_at_zero(const LinearLR& s) {
  if (s.end_factor != 0) return {};
  return EndAtZero{s.total_iters, "total_iters", s.total_iters};
}
std::optional<EndAtZero> end_at_zero(const PolynomialLR& s) {
  if (s.power == 0) return {};
  return EndAtZero{s.total_iters, "total_iters", s.total_iters};
}

double rate_of(const SchedulerConfig& scheduler, double base_lr, std::int64_t step,
               KnownRate& known) {
  SLUICE_CHECK(step >= 1, "learning rate of step " + std::to_string(step) + ": steps count from 1");
  const auto evaluate = [&](const auto& schedule) {
    if constexpr (requires { rate(schedule, base_lr, step, known); }) {
      return rate(schedule, base_lr, step, known);
    } else {
      return rate(schedule, base_lr, step);
    }
  };
  return std::visit(evaluate, scheduler);
}

}  // namespace

double learning_rate(const SchedulerConfig& scheduler, double base_lr, std::int64_t step) {
  KnownRate known;
  return rate_of(scheduler, base_lr, step, known);
}

double LearningRates::at(std::int64_t step) {
  return rate_of(scheduler_, base_lr_, step, known_);
}

std::string steps_at_zero(const SchedulerConfig& scheduler, std::int64_t steps) {
  const auto end = std::visit([](const auto& s) { return end_at_zero(s); }, scheduler);
  if (!end || steps <= end->last_step) return "";
  const std::string asked = std::to_string(steps);
  return "the learning rate is 0 from step " + std::to_string(end->last_step + 1) +
         " on, and the run has " + asked +
         " steps: those change no weight. The schedule ends there (scheduler.params." +
         std::string(end->parameter) + ": " + std::to_string(end->value) + "); set it to " + asked +
         ", or give --steps " + std::to_string(end->last_step);
}

Betas betas_of_step(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                    std::int64_t step) {
  const auto* cycle = std::get_if<OneCycle>(&scheduler);
  if (cycle == nullptr || !cycle->cycle_momentum) return {optimizer.beta1, optimizer.beta2};
  return {momentum(*cycle, step), 0.99};  // DeepSpeed's constant
}

std::optional<std::int64_t> last_step_of_betas(const SchedulerConfig& scheduler) {
  const auto* cycle = std::get_if<OneCycle>(&scheduler);
  if (cycle == nullptr || !cycle->cycle_momentum || !decays_momentum(*cycle)) return {};
  // Momentum grows after the cycle, so the last good step is found by bisection.
  std::int64_t good = cycle->cycle_first_step_size + cycle->cycle_second_step_size + 1;
  std::int64_t bad = std::int64_t{1} << 62;
  if (momentum(*cycle, bad) < 1) return {};
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (momentum(*cycle, middle) < 1 ? good : bad) = middle;
  }
  return good;
}

}  // namespace sluice::config
