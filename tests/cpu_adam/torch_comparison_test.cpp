// Against torch::optim::Adam, AdamW, Adagrad and SGD of the LibTorch that the engine uses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {
namespace {

constexpr int kSteps = 100;
constexpr std::size_t kCount = 1'003;

torch::Tensor tensor_of(const std::vector<float>& values) {
  return torch::tensor(torch::ArrayRef<float>(values));
}

// Both sides do equal operations. Where only one side fuses a multiply-add (LibTorch's vector and
// scalar loops differ), the other side has one more rounding: at most u = 2^-24 of the terms in m,
// and in v, per step. So after t steps, relative: |dv| <= 2tu v (terms of one sign), |dm| <= 2u /
// (1 - beta1) G with G the largest gradient. An update of size U = lr * m / denominator then
// differs by (t u + 9u) |U| + lr * 2u * 10 * G / denominator: LibTorch rounds its step size, two
// divisions, a sum and a product; this code has one division less. Gradients lie in [0.5, 1.5] in
// size, so G / denominator <= 3 and |U| <= 3 lr. L2 decay changes a gradient by at most 0.01 * 2,
// which the factor of 2 below covers. The two subtractions from p and the decay round by 2u |p| on
// each side. Summed over T steps:
//   4u P T + 3 lr u (T^2 / 2 + 9T) + 60 lr u T,  twice for the margin.
double tolerance(double lr, double largest_p) {
  const double u = 0x1p-24, t = kSteps;
  return 2 * (4 * u * largest_p * t + 3 * lr * u * (t * t / 2 + 9 * t) + 60 * lr * u * t);
}

// Steps both sides on equal gradients of 0.5 to 1.5 in size and either sign.
template <class Optimizer, class Options>
void compare(const OptimizerConfig& config, const Options& options, double allowed,
             const char* name) {
  std::mt19937 random(17);
  std::uniform_real_distribution<float> size(0.5F, 1.5F);
  std::bernoulli_distribution negative;
  std::vector<float> p;
  for (std::size_t i = 0; i < kCount; ++i) p.push_back(size(random) - 1);
  torch::Tensor parameter = tensor_of(p).set_requires_grad(true);
  Optimizer optimizer({parameter}, options);

  std::vector<float> gradient(kCount);
  std::vector<std::vector<float>> moments(moment_count(config), std::vector<float>(kCount));
  Tile tile{.master = std::span(p), .gradient = std::span<const float>(gradient)};
  for (std::size_t k = 0; k < moments.size(); ++k) tile.moments[k] = std::span(moments[k]);
  std::size_t same = 0;
  double worst = 0;
  for (int t = 1; t <= kSteps; ++t) {
    for (float& g : gradient) g = negative(random) ? -size(random) : size(random);
    parameter.mutable_grad() = tensor_of(gradient);
    optimizer.step();
    step_tile(config, Step{.step = t}, tile);
  }
  const torch::Tensor theirs = parameter.detach().contiguous();
  const float* expected = theirs.template data_ptr<float>();
  for (std::size_t i = 0; i < kCount; ++i) {
    const double difference = std::abs(static_cast<double>(p[i]) - expected[i]);
    EXPECT_LE(difference, allowed) << name << ", element " << i;
    worst = std::max(worst, difference);
    same += p[i] == expected[i] ? 1 : 0;
  }
  std::printf(
      "%s: %zu of %zu elements have the same bits after %d steps; largest difference %.3g\n", name,
      same, kCount, kSteps, worst);
}

template <class Optimizer, class Options>
void compare_adam(const AdamConfig& config, const char* name) {
  compare<Optimizer>(config,
                     Options(config.learning_rate)
                         .betas({config.beta1, config.beta2})
                         .eps(config.epsilon)
                         .weight_decay(config.weight_decay)
                         .amsgrad(config.amsgrad),
                     tolerance(config.learning_rate, 1.5), name);
}

TEST(AgainstTorch, AdamFollowsTorchOptimAdam) {
  compare_adam<torch::optim::Adam, torch::optim::AdamOptions>({.decay = WeightDecay::l2}, "Adam");
}

TEST(AgainstTorch, AdamWithL2FollowsTorchOptimAdam) {
  compare_adam<torch::optim::Adam, torch::optim::AdamOptions>(
      {.weight_decay = 0.01, .decay = WeightDecay::l2}, "Adam with L2");
}

TEST(AgainstTorch, AdamWFollowsTorchOptimAdamW) {
  compare_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(
      {.weight_decay = 0.1, .decay = WeightDecay::decoupled}, "AdamW");
}

TEST(AgainstTorch, OtherConstantsFollowTorchOptimAdamW) {
  compare_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(
      {.learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.01},
      "AdamW, beta2 0.95");
}

TEST(AgainstTorch, AmsGradFollowsTorchOptimAdam) {
  compare_adam<torch::optim::AdamW, torch::optim::AdamWOptions>(
      {.beta2 = 0.95, .weight_decay = 0.01, .amsgrad = true}, "AMSGrad");
}

// The growing sum of squares has one rounding per step on each side: relative, |ds| <= 2tu s. An
// update lr g / sqrt(s) is at most lr G / (g_min sqrt(t)) = 3 lr / sqrt(t) in size, and differs by
// (t u + 4u) of itself; the subtraction rounds by u |p| on each side, and decay, at most 0.01 * 2
// of a gradient of at least 0.5, changes it by 2u of itself. Summed:
//   2u P T + 3 lr u (2/3 T^1.5 + 12 T^0.5),  twice for the margin.
TEST(AgainstTorch, AdagradFollowsTorchOptimAdagrad) {
  const double u = 0x1p-24, t = kSteps, lr = 0.05;
  const double allowed =
      2 * (2 * u * 1.5 * t + 3 * lr * u * (2.0 / 3 * std::pow(t, 1.5) + 12 * std::sqrt(t)));
  for (const double decay : {0.0, 0.01}) {
    compare<torch::optim::Adagrad>(
        AdagradConfig{.learning_rate = lr, .learning_rate_decay = 0.01, .weight_decay = decay},
        torch::optim::AdagradOptions(lr).lr_decay(0.01).weight_decay(decay), allowed, "Adagrad");
  }
}

// A buffer is at most B = G / (1 - momentum) in size and has two roundings per step on each side,
// whose errors decay by `momentum` a step: |db| <= 4u B / (1 - momentum). The master moves by lr
// times the buffer (twice that with nesterov) and rounds by u |p| + u lr B. Summed over T steps:
//   T (2u P + lr (8u B / (1 - momentum) + 4u B)),  twice for the margin. P: the largest master.
TEST(AgainstTorch, SgdFollowsTorchOptimSgd) {
  const double u = 0x1p-24, lr = 0.01;
  const auto follow = [&](const SgdConfig& config, const char* name) {
    const double rest = 1 - config.momentum;
    const double buffer = 1.5 / rest;
    const double largest = 0.5 + lr * kSteps * buffer;
    const double allowed =
        2 * kSteps * (2 * u * largest + lr * (8 * u * buffer / rest + 4 * u * buffer));
    compare<torch::optim::SGD>(config,
                               torch::optim::SGDOptions(lr)
                                   .momentum(config.momentum)
                                   .dampening(config.dampening)
                                   .weight_decay(config.weight_decay)
                                   .nesterov(config.nesterov),
                               allowed, name);
  };
  follow({.learning_rate = lr}, "SGD");
  follow({.learning_rate = lr, .weight_decay = 0.01}, "SGD with L2");
  follow({.learning_rate = lr, .momentum = 0.9, .dampening = 0.1}, "SGD with momentum");
  follow({.learning_rate = lr, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
         "SGD, Nesterov");
}

}  // namespace
}  // namespace sluice::cpu_adam
