// Adagrad, Lion, SGD and AMSGrad against their formulas in double, with a running bound on the
// error of fp32. As in adam_reference.hpp, each operation adds at most u = 2^-24 of its result,
// each constant rounded to fp32 adds u of itself, and errors of the operands propagate to first
// order.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "adam_state.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cpu_adam {
namespace {

using test::AdamState;
using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;

// A value in double, and a bound on the distance of the fp32 value.
struct Bounded {
  double value = 0;
  double bound = 0;
};
Bounded rounded(double value, double bound) {
  return {value, bound + kU * std::abs(value)};
}
Bounded constant(double value) {
  return rounded(value, 0);
}
Bounded operator*(Bounded a, Bounded b) {
  return rounded(a.value * b.value, std::abs(a.value) * b.bound + std::abs(b.value) * a.bound);
}
Bounded operator+(Bounded a, Bounded b) {
  return rounded(a.value + b.value, a.bound + b.bound);
}
Bounded operator-(Bounded a, Bounded b) {
  return rounded(a.value - b.value, a.bound + b.bound);
}
Bounded operator/(Bounded a, Bounded b) {
  const double value = a.value / b.value;
  return rounded(value, (a.bound + std::abs(value) * b.bound) / std::abs(b.value));
}
Bounded root(Bounded a) {
  const double value = std::sqrt(a.value);
  return rounded(value, value > 0 ? a.bound / (2 * value) : 0);
}
Bounded larger(Bounded a, Bounded b) {
  return {std::max(a.value, b.value), std::max(a.bound, b.bound)};
}

// One element's reference.
struct Element {
  Bounded p;
  Bounded moments[kMostMoments];

  void step(const AdamConfig& c, int t, Bounded g) {
    const Bounded keep = constant(1 - c.learning_rate * c.weight_decay);
    p = p * keep;
    auto& [m, v, most] = moments;
    m = constant(c.beta1) * m + constant(1 - c.beta1) * g;
    v = constant(c.beta2) * v + constant(1 - c.beta2) * g * g;
    most = larger(most, v);
    const double correction = std::sqrt(1 - std::pow(c.beta2, t));
    const Bounded size = constant(c.learning_rate * correction / (1 - std::pow(c.beta1, t)));
    p = p - size * m / (root(most) + constant(c.epsilon * correction));
  }
  void step(const AdagradConfig& c, int t, Bounded g) {
    g = g + constant(c.weight_decay) * p;
    moments[0] = moments[0] + g * g;
    const Bounded rate = constant(c.learning_rate / (1 + (t - 1) * c.learning_rate_decay));
    p = p - rate * g / (root(moments[0]) + constant(c.epsilon));
  }
  // Where the direction may have either sign, the master may move either way.
  void step(const LionConfig& c, int, Bounded g) {
    Bounded& m = moments[0];
    const Bounded direction = constant(c.beta1) * m + constant(1 - c.beta1) * g;
    const bool sure = std::abs(direction.value) > direction.bound;
    const double sign = direction.value > 0 ? 1 : direction.value < 0 ? -1 : 0;
    p = constant(1 - c.learning_rate * c.weight_decay) * p -
        constant(c.learning_rate) * Bounded{sign, sure ? 0.0 : 2.0};
    m = constant(c.beta2) * m + constant(1 - c.beta2) * g;
  }
  void step(const SgdConfig& c, int t, Bounded g) {
    g = g + constant(c.weight_decay) * p;
    if (c.momentum != 0) {
      Bounded& m = moments[0];
      m = t == 1 ? g : constant(c.momentum) * m + constant(1 - c.dampening) * g;
      g = c.nesterov ? g + constant(c.momentum) * m : m;
    }
    p = p - constant(c.learning_rate) * g;
  }
};

struct Case {
  const char* name;
  OptimizerConfig config;
};

// Compares the states with the reference; returns the widest bound of a master.
double expect_within_bounds(const OptimizerConfig& config, MasterLayout master, AdamState& state,
                            const std::vector<Element>& reference) {
  double widest = 0;
  const test::Guarded<float>* moments[] = {&state.m, &state.v, &state.most};
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const Element& r = reference[i];
    const float p = master == MasterLayout::fp32
                        ? state.p.span()[i]
                        : join({state.high.span()[i], state.low.span()[i]});
    // Second-order terms are far below 1 % of the first-order terms.
    EXPECT_NEAR(p, r.p.value, 1.01 * r.p.bound) << i;
    for (std::size_t k = 0; k < moment_count(config); ++k)
      EXPECT_NEAR(moments[k]->span()[i], r.moments[k].value, 1.01 * r.moments[k].bound) << i;
    widest = std::max(widest, r.p.bound);
  }
  return widest;
}

class AgainstDoubleToo : public ::testing::TestWithParam<Case> {};

TEST_P(AgainstDoubleToo, StaysWithinTheRoundingBoundFor1000Steps) {
  constexpr std::size_t kCount = 203;
  const OptimizerConfig& config = GetParam().config;
  const bool maximize = std::visit([](const auto& of) { return of.maximize; }, config);
  const double rate = std::visit([](const auto& of) { return of.learning_rate; }, config);
  for (const MasterLayout master : {MasterLayout::fp32, MasterLayout::split}) {
    std::mt19937 random(42);
    std::normal_distribution<float> normal;
    AdamState state(kCount);
    std::vector<Element> reference(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const float p = normal(random);
      state.set(i, p, 0, 0, 0);
      reference[i].p = {p, 0};
    }
    constexpr float kFactor = 0.37F;
    for (int t = 1; t <= 1000; ++t) {
      for (std::size_t i = 0; i < kCount; ++i) {
        const float scale = std::pow(10.0F, static_cast<float>(i % 5) - 4);
        state.set_gradient(i, scale * (normal(random) + 0.5F));
        const double g = (maximize ? -1.0 : 1.0) * kFactor * to_fp32(state.gbf.span()[i]);
        std::visit([&](const auto& of) { reference[i].step(of, t, rounded(g, 0)); }, config);
      }
      step_tile(
          config, Step{.step = t, .gradient_factor = kFactor},
          state.tile(config, {master, DType::fp32}, DType::bf16, WeightType::none, 0, kCount));
    }
    const double widest = expect_within_bounds(config, master, state, reference);
    EXPECT_LT(widest, std::max(rate, 1e-3)) << "a bound that sees no wrong formula";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, AgainstDoubleToo,
    ::testing::Values(
        Case{"AmsGrad", AdamConfig{.weight_decay = 0.01, .amsgrad = true}},
        Case{"AmsGradMaximize", AdamConfig{.amsgrad = true, .maximize = true}},
        Case{"Adagrad", AdagradConfig{}},
        Case{"AdagradDecaying",
             AdagradConfig{.learning_rate_decay = 0.01, .weight_decay = 1e-4, .maximize = true}},
        Case{"Lion", LionConfig{.weight_decay = 0.1}},
        Case{"LionMaximize", LionConfig{.beta1 = 0.95, .beta2 = 0.98, .maximize = true}},
        Case{"Sgd", SgdConfig{.weight_decay = 1e-3}},
        Case{"SgdMaximize", SgdConfig{.maximize = true}},
        Case{"Momentum", SgdConfig{.momentum = 0.9, .dampening = 0.1, .weight_decay = 1e-3}},
        Case{"Nesterov", SgdConfig{.momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}}),
    [](const auto& param) { return param.param.name; });

TEST(Lion, AZeroDirectionDoesNotMoveTheMaster) {
  AdamState state(20);
  for (float& p : state.p.span()) p = 2;
  const LionConfig config{.learning_rate = 0.5};
  step_tile(config, {}, state.tile(config, {}, DType::fp32, WeightType::none, 0, 20));
  for (const float p : state.p.span()) EXPECT_EQ(p, 2);
}

TEST(Optimizers, RefuseWhatTheyCannotBeBeforeAnythingIsWritten) {
  const auto refuse = [](const OptimizerConfig& config, const char* part) {
    AdamState state(40);
    state.fill(1);
    const AdamState before = state;
    std::string message;
    try {
      step_tile(config, {}, state.tile(config, {}, DType::fp32, WeightType::none, 0, 40));
    } catch (const InvalidArgument& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr(part));
    EXPECT_TRUE(state.same_bits(before));
  };
  refuse(AdagradConfig{.learning_rate = -1}, "Adagrad: learning_rate is -1");
  refuse(AdagradConfig{.learning_rate_decay = NAN}, "learning_rate_decay is nan");
  refuse(AdagradConfig{.epsilon = -1}, "epsilon is -1");
  refuse(LionConfig{.beta1 = 1}, "Lion: beta1 is 1; it must be in [0, 1)");
  refuse(LionConfig{.beta2 = -0.5}, "beta2 is -0.5");
  refuse(LionConfig{.weight_decay = INFINITY}, "weight_decay is inf");
  refuse(SgdConfig{.momentum = -0.5}, "SGD: momentum is -0.5");
  refuse(SgdConfig{.dampening = NAN}, "dampening is nan");
  refuse(SgdConfig{.nesterov = true}, "nesterov needs a momentum");
  refuse(SgdConfig{.momentum = 0.9, .dampening = 0.1, .nesterov = true}, "no dampening");
}

TEST(Optimizers, RefuseMomentsTheyDoNotHaveAndLack) {
  AdamState state(40);
  const auto message_of = [](const OptimizerConfig& config, const Tile& tile) {
    try {
      step_tile(config, {}, tile);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(
      message_of(SgdConfig{}, state.tile()),
      HasSubstr("SGD without momentum has no moments; the tile's moment 1 has 40 elements"));
  EXPECT_THAT(message_of(AdamConfig{.amsgrad = true}, state.tile()),
              HasSubstr("Adam with amsgrad has 3 moments; the tile lacks moment 3"));
  Tile mixed = state.tile();
  mixed.moments[1] = state.m16[1].span();
  EXPECT_THAT(message_of(AdamConfig{}, mixed), HasSubstr("moment 2 is of another type"));
  Tile split = state.tile(AdamConfig{}, {MasterLayout::split, DType::fp32}, DType::fp32,
                          WeightType::none, 0, 40);
  split.weight = state.wbf.span();
  EXPECT_THAT(message_of(AdamConfig{}, split), HasSubstr("has its weight in itself"));
}

}  // namespace
}  // namespace sluice::cpu_adam
