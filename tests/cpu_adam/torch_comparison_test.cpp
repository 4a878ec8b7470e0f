// Against torch::optim::Adam and AdamW of the LibTorch that the engine uses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "sluice/cpu_adam/adam.hpp"

namespace sluice::cpu_adam {
namespace {

constexpr int kSteps = 100;
constexpr std::size_t kCount = 1'003;

struct Ours {
  std::vector<float> p, m = std::vector<float>(kCount), v = std::vector<float>(kCount);
};

torch::Tensor tensor_of(const std::vector<float>& values) {
  return torch::tensor(torch::ArrayRef<float>(values));
}

// Both follow the same operations. Where LibTorch does not fuse a multiply-add that is fused here,
// or the reverse (its vector and its scalar loops differ), one rounding is there on one side only:
// at most u = 2^-24 of the terms in m, and in v, per step. So after t steps, relative: |dv| <= 2tu
// v (terms of one sign), |dm| <= 2u / (1 - beta1) G with G the largest gradient. An update of size
// U = lr * m / denominator then differs by (t u + 4u) |U| + lr * 2u * 10 * G / denominator;
// gradients lie in [0.5, 1.5] in size, so G / denominator <= 3 and |U| <= 3 lr. L2 decay changes a
// gradient by at most 0.01 * 2: within the factor of 2 that is left below. The two subtractions
// from p and the decay round by 2u |p| on each side. Summed over T steps:
//   4u P T + 3 lr u (T^2 / 2 + 4T) + 60 lr u T,  twice for the margin.
double tolerance(double lr, double largest_p) {
  const double u = 0x1p-24, t = kSteps;
  return 2 * (4 * u * largest_p * t + 3 * lr * u * (t * t / 2 + 4 * t) + 60 * lr * u * t);
}

template <class Optimizer, class Options>
void compare(const AdamConfig& config, const char* name) {
  std::mt19937 random(17);
  std::uniform_real_distribution<float> size(0.5F, 1.5F);
  std::bernoulli_distribution negative;
  Ours ours;
  for (std::size_t i = 0; i < kCount; ++i) ours.p.push_back(size(random) - 1);

  torch::Tensor parameter = tensor_of(ours.p).set_requires_grad(true);
  Optimizer optimizer({parameter}, Options(config.learning_rate)
                                       .betas({config.beta1, config.beta2})
                                       .eps(config.epsilon)
                                       .weight_decay(config.weight_decay));
  std::vector<float> gradient(kCount);
  std::size_t same = 0;
  double worst = 0;
  for (int t = 1; t <= kSteps; ++t) {
    for (float& g : gradient) g = negative(random) ? -size(random) : size(random);
    parameter.mutable_grad() = tensor_of(gradient);
    optimizer.step();
    step_tile(config, {.step = t},
              {ours.p, ours.m, ours.v, std::span<const float>(gradient), std::monostate{}});
  }
  const torch::Tensor theirs = parameter.detach().contiguous();
  const float* expected = theirs.template data_ptr<float>();
  for (std::size_t i = 0; i < kCount; ++i) {
    const double difference = std::abs(static_cast<double>(ours.p[i]) - expected[i]);
    EXPECT_LE(difference, tolerance(config.learning_rate, 1.5)) << name << ", element " << i;
    worst = std::max(worst, difference);
    same += ours.p[i] == expected[i] ? 1 : 0;
  }
  std::printf(
      "%s: %zu of %zu elements have the same bits after %d steps; largest difference %.3g\n", name,
      same, kCount, kSteps, worst);
}

TEST(AgainstTorch, AdamFollowsTorchOptimAdam) {
  compare<torch::optim::Adam, torch::optim::AdamOptions>({.decay = WeightDecay::l2}, "Adam");
}

TEST(AgainstTorch, AdamWithL2FollowsTorchOptimAdam) {
  compare<torch::optim::Adam, torch::optim::AdamOptions>(
      {.weight_decay = 0.01, .decay = WeightDecay::l2}, "Adam with L2");
}

TEST(AgainstTorch, AdamWFollowsTorchOptimAdamW) {
  compare<torch::optim::AdamW, torch::optim::AdamWOptions>(
      {.weight_decay = 0.1, .decay = WeightDecay::decoupled}, "AdamW");
}

TEST(AgainstTorch, OtherConstantsFollowTorchOptimAdamW) {
  compare<torch::optim::AdamW, torch::optim::AdamWOptions>(
      {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.01},
      "AdamW, beta2 0.95");
}

}  // namespace
}  // namespace sluice::cpu_adam
