#include "schedule/torch_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

namespace sluice::config {

namespace {

// torch's `last_epoch` at optimizer step `step`: 0 for the first.
std::int64_t epoch_at(std::int64_t step) {
  return step - 1;
}

double real(std::int64_t count) {
  return static_cast<double>(count);
}

// Where the recursion begins: at `known` unless it lies behind `epoch`, else at epoch 0 with
// `first`.
void start(KnownRate& known, std::int64_t epoch, double first) {
  if (known.epoch < 0 || known.epoch > epoch) known = {0, first};
}

// `first` times `factor`, `times` times over, rounded each time. `known` counts products.
double multiplied(KnownRate& known, double first, double factor, std::int64_t times) {
  start(known, times, first);
  for (; known.epoch < times; ++known.epoch) {
    const double next = known.lr * factor;
    if (next == known.lr) known.epoch = times - 1;  // nor will any later product differ
    known.lr = next;
  }
  return known.lr;
}

// 1 + cos(pi epoch / T), the numerator of one epoch's ratio and the denominator of the next one's.
double raised_cosine(std::int64_t epoch, std::int64_t t_max) {
  return 1 + std::cos(std::numbers::pi * real(epoch) / real(t_max));
}

// The last epoch up to `epoch` at which the cosine is at its lowest; 0: none yet.
std::int64_t last_trough(const CosineAnnealingLR& s, std::int64_t epoch) {
  const std::int64_t halves = epoch / s.t_max;
  const std::int64_t trough = (halves - (halves % 2 == 0 ? 1 : 0)) * s.t_max;
  // There torch multiplies by exactly 0, so the rate is eta_min whatever came before.
  return trough > 0 && raised_cosine(trough, s.t_max) == 0 ? trough : 0;
}

}  // namespace

double rate(const ConstantLR& s, double base_lr, std::int64_t step) {
  const double reduced = base_lr * s.factor;
  return epoch_at(step) < s.total_iters ? reduced : reduced * (1.0 / s.factor);
}

double rate(const LinearLR& s, double base_lr, std::int64_t step, KnownRate& known) {
  const double change = s.end_factor - s.start_factor;
  const std::int64_t end = std::min(epoch_at(step), s.total_iters);
  start(known, end, base_lr * s.start_factor);
  for (; known.epoch < end; ++known.epoch)
    known.lr *= 1.0 + change / (real(s.total_iters) * s.start_factor + real(known.epoch) * change);
  return known.lr;
}

double rate(const PolynomialLR& s, double base_lr, std::int64_t step, KnownRate& known) {
  const std::int64_t end = std::min(epoch_at(step), s.total_iters);
  start(known, end, base_lr);
  for (; known.epoch < end; ++known.epoch) {
    const double left = 1.0 - real(known.epoch + 1) / real(s.total_iters);
    const double before = 1.0 - real(known.epoch) / real(s.total_iters);
    known.lr *= std::pow(left / before, s.power);
  }
  return known.lr;
}

double rate(const StepLR& s, double base_lr, std::int64_t step, KnownRate& known) {
  return multiplied(known, base_lr, s.gamma, epoch_at(step) / s.step_size);
}

double rate(const MultiStepLR& s, double base_lr, std::int64_t step) {
  std::map<std::int64_t, int> counts;
  for (const std::int64_t milestone : s.milestones) ++counts[milestone];
  double lr = base_lr;
  for (const auto& [milestone, count] : counts)
    if (milestone <= epoch_at(step)) lr *= std::pow(s.gamma, count);
  return lr;
}

double rate(const ExponentialLR& s, double base_lr, std::int64_t step, KnownRate& known) {
  return multiplied(known, base_lr, s.gamma, epoch_at(step));
}

double rate(const CosineAnnealingLR& s, double base_lr, std::int64_t step, KnownRate& known) {
  const std::int64_t end = epoch_at(step);
  const std::int64_t trough = last_trough(s, end);
  start(known, end, base_lr);
  if (trough > known.epoch) known = {trough, s.eta_min};
  double before = raised_cosine(known.epoch, s.t_max);
  while (known.epoch < end) {
    const bool leaves_trough = (known.epoch - s.t_max) % (2 * s.t_max) == 0;
    const double now = raised_cosine(++known.epoch, s.t_max);
    if (leaves_trough) {
      known.lr += (base_lr - s.eta_min) * (1 - std::cos(std::numbers::pi / real(s.t_max))) / 2;
    } else {
      known.lr = now / before * (known.lr - s.eta_min) + s.eta_min;
    }
    before = now;
  }
  return known.lr;
}

double rate(const CosineAnnealingWarmRestarts& s, double base_lr, std::int64_t step) {
  std::int64_t epoch = epoch_at(step);
  std::int64_t period = s.t_0;
  if (s.t_mult == 1) {
    epoch %= period;
  } else {
    while (epoch >= period) {
      epoch -= period;
      period *= s.t_mult;
    }
  }
  return s.eta_min +
         (base_lr - s.eta_min) * (1 + std::cos(std::numbers::pi * real(epoch) / real(period))) / 2;
}

}  // namespace sluice::config
