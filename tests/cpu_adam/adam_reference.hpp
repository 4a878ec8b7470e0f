#pragma once
// Adam in double, written from the papers, with a running bound on the error of an fp32
// implementation (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3). Each
// operation of docs/numerics.md adds at most kUnit = 2^-24 of its result, each constant rounded to
// fp32 adds kUnit of itself, and errors of the operands propagate to first order.
// Thread-compatible.

#include <cmath>

#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam::test {

struct AdamReference {
  double p, m = 0, v = 0;
  double p_bound = 0, m_bound = 0, v_bound = 0;

  // Adam: Kingma & Ba 2015, Alg. 1. AdamW: Loshchilov & Hutter 2019, Alg. 2.
  void step(const AdamConfig& c, int t, double gradient, double factor) {
    constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32
    const double lr = c.learning_rate, b1 = c.beta1, b2 = c.beta2, decay = c.weight_decay;

    double g = factor * gradient;
    double g_bound = kUnit * std::abs(g);
    if (c.decay == WeightDecay::l2) {
      g += decay * p;
      g_bound += decay * (p_bound + kUnit * std::abs(p)) + kUnit * std::abs(g);
    } else {
      const double keep = 1 - lr * decay;
      p *= keep;
      p_bound = p_bound * keep + 2 * kUnit * std::abs(p);
    }

    const double old_m = m, old_v = v;
    m = b1 * old_m + (1 - b1) * g;
    m_bound = b1 * m_bound + (1 - b1) * g_bound +
              kUnit * (2 * b1 * std::abs(old_m) + (1 - b1) * std::abs(g) + std::abs(m));
    v = b2 * old_v + (1 - b2) * g * g;
    v_bound = b2 * v_bound + 2 * (1 - b2) * std::abs(g) * g_bound +
              kUnit * (2 * b2 * old_v + 3 * (1 - b2) * g * g + v);

    const double correction1 = c.bias_correction ? 1 - std::pow(b1, t) : 1;
    const double correction2 = c.bias_correction ? 1 - std::pow(b2, t) : 1;
    const double root = std::sqrt(v / correction2);
    const double denominator = root + c.epsilon;
    const double denominator_bound =
        v_bound / (2 * std::sqrt(v * correction2)) + kUnit * (root + c.epsilon + denominator);
    const double update = lr * (m / correction1) / denominator;
    p -= update;
    p_bound += lr / correction1 * m_bound / denominator +
               std::abs(update) * (denominator_bound / denominator + 3 * kUnit) +
               kUnit * std::abs(p);
  }

  // Second-order terms are far below 1 % of the first-order terms.
  static double margin(double bound) { return 1.01 * bound; }
};

}  // namespace sluice::cpu_adam::test
