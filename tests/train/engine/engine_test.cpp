// Loops of the user's own: each against LibTorch alone, or against the same loop done otherwise.

#include <gmock/gmock.h>

#include "engine_support.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// A unit of one matrix; y = x w.
struct MatrixImpl : torch::nn::Module {
  explicit MatrixImpl(double value, std::int64_t width = 4)
      : w(register_parameter("w", torch::eye(width) * value)) {}
  Tensor forward(const Tensor& x) { return x.mm(w); }
  Tensor w;
};
TORCH_MODULE(Matrix);

// Gradients tell themselves in the weights: w' = w - lr sign(g) after one step without decay, since
// Adam's first update is g / (|g| + eps).
LoopSetup one_step() {
  return {.bf16 = false, .accumulation = 1, .clipping = 0, .weight_decay = 0, .epsilon = 1.0};
}
// Change by one_step()'s first update for gradient g: bias correction cancels.
Tensor first_update(const Tensor& g) {
  return 1e-2 * g / (g.abs() + 1.0);
}

Tensor ones(std::int64_t width = 4) {
  return torch::ones({2, width});
}

void expect_near(const Tensor& got, const Tensor& expected) {
  // fp32, a handful of operations on numbers around 1.
  EXPECT_LT((got - expected).abs().max().item<double>(), 1e-6) << got << "\n" << expected;
}

TEST(OwnLoop, SeveralForwardsBeforeOneBackwardAddUp) {
  Engine engine(config_of(one_step()));
  const Unit a = engine.add_unit("a", Matrix(1.0));
  const Unit b = engine.add_unit("b", Matrix(2.0));
  engine.initialize();
  const Tensor first = engine.forward(b, engine.forward(a, ones()));
  const Tensor second = engine.forward(b, engine.forward(a, 3 * ones()));
  const Tensor third = engine.forward(a, ones());  // without b
  engine.backward(first.sum() + second.sum() + third.mean());
  EXPECT_TRUE(engine.step().updated);

  Tensor wa = torch::eye(4).requires_grad_(true);
  Tensor wb = (torch::eye(4) * 2.0).requires_grad_(true);
  (ones().mm(wa).mm(wb).sum() + (3 * ones()).mm(wa).mm(wb).sum() + ones().mm(wa).mean()).backward();
  expect_near(engine.parameter("a.w"), wa.detach() - first_update(wa.grad()));
  expect_near(engine.parameter("b.w"), wb.detach() - first_update(wb.grad()));
}

TEST(OwnLoop, SeveralBackwardsBelongToOneMicroBatch) {
  Engine engine(config_of(one_step()));
  const Unit a = engine.add_unit("a", Matrix(1.0));
  engine.initialize();
  engine.backward(engine.forward(a, ones()).sum());
  engine.backward(engine.forward(a, 2 * ones()).sum());
  engine.step();
  expect_near(engine.parameter("a.w"),
              torch::eye(4) - first_update(torch::full({4, 4}, 2.0 + 4.0)));
}

TEST(OwnLoop, EvaluationInTheMiddleLeavesTheLossesAsTheyWere) {
  for (const std::string keys : {"", "\"activations\": \"recompute\", "}) {
    LoopSetup setup;
    setup.sluice_keys = keys;
    const Course undisturbed = run(setup, 0, 8);
    Trained trained(config_of(setup), Model());
    trained.engine.initialize();
    Course course;
    std::vector<double> evaluations;
    for (int i = 0; i < 16; ++i) {
      const Tensor loss = trained.loss(batch(i));
      if (i % 3 == 0) {  // between forward and backward
        const torch::NoGradGuard no_grad;
        evaluations.push_back(trained.loss(batch(1)).item<double>());
      }
      trained.engine.backward(loss);
      const StepResult result = trained.engine.step();
      if (i % 4 == 1) {
        const c10::InferenceMode inference;
        evaluations.push_back(trained.loss(batch(1)).item<double>());
      }
      if (i % 2 == 1) course.losses.push_back(result.loss);
      if (i % 2 == 1) course.norms.push_back(result.gradient_norm);
    }
    for (const std::string& name : parameter_names())
      course.weights.push_back(bytes_of(trained.engine.parameter(name)));
    expect_same(course, undisturbed);
    EXPECT_LT(evaluations.back(), evaluations.front());
  }
}

TEST(OwnLoop, EvaluationKeepsNothing) {
  Trained trained(config_of({}), Model());
  trained.engine.initialize();
  const torch::NoGradGuard no_grad;
  const Tensor out = trained.engine.forward(trained.units[0], batch(0).inputs);
  EXPECT_FALSE(out.requires_grad());
  EXPECT_EQ(out.grad_fn(), nullptr);
}

// Matrices of 64 x 64 in fp32: 4 pages each.
TEST(OwnLoop, FrozenParametersStayAsTheyAreAndHaveNoStates) {
  struct PairImpl : torch::nn::Module {
    PairImpl()
        : frozen(register_parameter("frozen", torch::randn({64, 64}), false)),
          trained(register_parameter("trained", torch::randn({64, 64}))) {}
    Tensor forward(const Tensor& x) { return x.mm(frozen).mm(trained); }
    Tensor frozen, trained;
  };
  constexpr std::uint64_t kBytes = sizeof(float) * 64 * 64;
  for (const std::string keys : {"", "\"activations\": \"recompute\", "}) {
    LoopSetup setup = one_step();
    setup.sluice_keys = keys;
    setup.weight_decay = 0.5;
    Engine engine(config_of(setup));
    const auto pair = std::make_shared<PairImpl>();
    const auto whole = std::make_shared<MatrixImpl>(2.0, 64);
    whole->w.set_requires_grad(false);
    Tensor frozen = pair->frozen.clone();
    Tensor trained = pair->trained.detach().clone().requires_grad_(true);
    const Unit a = engine.add_unit("a", pair);
    const Unit b = engine.add_unit("b", whole);
    engine.initialize();
    // On the host: three matrices of weights, one gradient, one master and two moments.
    EXPECT_EQ(engine.counters().host_peak_bytes, (3 + 1 + 3) * kBytes);
    engine.backward(engine.forward(b, engine.forward(a, ones(64))).sum());
    engine.step();
    ones(64).mm(frozen).mm(trained).mm(torch::eye(64) * 2).sum().backward();
    const Tensor decayed = trained.detach() * (1 - 1e-2 * 0.5);
    EXPECT_LT((engine.parameter("a.trained") - decayed + first_update(trained.grad()))
                  .abs()
                  .max()
                  .item<double>(),
              1e-4);
    EXPECT_TRUE(torch::equal(engine.parameter("a.frozen"), frozen));
    EXPECT_TRUE(torch::equal(engine.parameter("b.w"), torch::eye(64) * 2));
  }
}

// A unit that only passes gradients through, and one that needs none at all.
TEST(OwnLoop, FrozenUnitsPassGradientsThroughOrRunWithout) {
  Engine engine(config_of(one_step()));
  Matrix before(3.0);
  Matrix after(2.0);
  before->w.set_requires_grad(false);
  after->w.set_requires_grad(false);
  const Unit a = engine.add_unit("a", before);
  const Unit b = engine.add_unit("b", Matrix(1.0));
  const Unit c = engine.add_unit("c", after);
  engine.initialize();
  const Tensor features = engine.forward(a, ones());
  EXPECT_FALSE(features.requires_grad());
  engine.backward(engine.forward(c, engine.forward(b, features)).sum());
  engine.step();
  expect_near(engine.parameter("b.w"), torch::eye(4) - first_update(torch::full({4, 4}, 12.0)));
}

TEST(OwnLoop, AnEngineOfFrozenUnitsEvaluates) {
  Engine engine(config_of({.optimizer_device = "none", .bf16 = false}));
  Matrix matrix(3.0);
  matrix->w.set_requires_grad(false);
  const Unit a = engine.add_unit("a", matrix);
  engine.initialize();
  for (int i = 0; i < 3; ++i) expect_near(engine.forward(a, ones()), 3 * ones());
  const Tensor x = ones().requires_grad_(true);
  EXPECT_THAT(message_of([&] { engine.step(); }), HasSubstr("step() without a backward()"));
  engine.backward(engine.forward(a, x).sum());
  expect_near(x.grad(), 3 * ones() / 2);  // two micro-batches make a step
}

TEST(OwnLoop, ATiedParameterGetsBothGradients) {
  Engine engine(config_of(one_step()));
  Matrix first(1.0);
  Matrix second(2.0);
  second->w = first->w;  // its own, which is registered, is not used any more
  const Unit a = engine.add_unit("a", first);
  const Unit b = engine.add_unit("b", second, {first->w});
  engine.initialize();
  engine.backward(engine.forward(b, engine.forward(a, ones())).sum());
  engine.step();
  Tensor w = torch::eye(4).requires_grad_(true);
  ones().mm(w).mm(w).sum().backward();
  expect_near(engine.parameter("a.w"), w.detach() - first_update(w.grad()));
  expect_near(engine.parameter("b.w"), torch::eye(4) * 2);  // unused
}

TEST(OwnLoop, ATiedParameterWhoseOwnerIsNotCalledIsTrainedByTheOther) {
  Engine engine(config_of(one_step()));
  Matrix first(1.0);
  engine.add_unit("a", first);
  const Unit b =
      engine.add_unit("b", std::make_shared<torch::nn::Module>(),
                      [w = first->w](const Tensors& x) { return Tensors{x[0].mm(w)}; }, {first->w});
  engine.initialize();
  engine.backward(engine.forward(b, ones()).sum());
  const StepResult result = engine.step();
  EXPECT_NEAR(result.gradient_norm, 8.0, 1e-6);  // 16 gradients of 2
  expect_near(engine.parameter("a.w"), torch::eye(4) - first_update(torch::full({4, 4}, 2.0)));
}

TEST(OwnLoop, WhatAStepDoesNotUseHasAGradientOfZero) {
  LoopSetup setup = one_step();
  setup.weight_decay = 0.5;
  Engine engine(config_of(setup));
  const Unit a = engine.add_unit("a", Matrix(1.0));
  const Unit b = engine.add_unit("b", Matrix(1.0));
  engine.initialize();
  // Momentum of the first step moves b in the second, and weight decay does.
  engine.backward(engine.forward(b, engine.forward(a, ones())).sum());
  engine.step();
  engine.backward(engine.forward(a, ones()).sum());
  engine.step();

  Tensor w = torch::eye(4).requires_grad_(true);
  torch::optim::AdamW adam({w}, torch::optim::AdamWOptions(1e-2).eps(1.0).weight_decay(0.5));
  ones().mm(torch::eye(4)).mm(w).sum().backward();
  adam.step();
  w.mutable_grad().zero_();
  adam.step();
  expect_near(engine.parameter("b.w"), w.detach());
}

TEST(OwnLoop, AUnitThatIsCalledTwiceSharesItsWeights) {
  for (const std::string keys : {"", "\"activations\": \"recompute\", "}) {
    LoopSetup setup = one_step();
    setup.sluice_keys = keys;
    Engine engine(config_of(setup));
    const Unit a = engine.add_unit("a", Matrix(1.5));
    engine.initialize();
    engine.backward(engine.forward(a, engine.forward(a, ones()).tanh()).sum());
    engine.step();
    Tensor w = (torch::eye(4) * 1.5).requires_grad_(true);
    ones().mm(w).tanh().mm(w).sum().backward();
    expect_near(engine.parameter("a.w"), w.detach() - first_update(w.grad()));
  }
}

// Two inputs of which one has no gradient, two outputs of which one is not used.
TEST(OwnLoop, UnitsHaveSeveralInputsAndOutputs) {
  for (const std::string keys : {"", "\"activations\": \"recompute\", "}) {
    LoopSetup setup = one_step();
    setup.sluice_keys = keys;
    Engine engine(config_of(setup));
    Matrix matrix(2.0);
    const Unit a = engine.add_unit("a", Matrix(1.0));
    const Unit b = engine.add_unit("b", matrix.ptr(), [matrix](const Tensors& x) mutable {
      return Tensors{matrix->forward(x[0]) * x[1], x[0].argmax(1), matrix->forward(x[0]).exp()};
    });
    engine.initialize();
    const Tensors out = engine.forward(b, Tensors{engine.forward(a, ones()), 3 * ones()});
    ASSERT_EQ(out.size(), 3U);
    EXPECT_FALSE(out[1].requires_grad());
    engine.backward(out[0].sum());
    engine.step();
    Tensor wa = torch::eye(4).requires_grad_(true);
    Tensor wb = (torch::eye(4) * 2.0).requires_grad_(true);
    (ones().mm(wa).mm(wb) * 3).sum().backward();
    expect_near(engine.parameter("a.w"), wa.detach() - first_update(wa.grad()));
    expect_near(engine.parameter("b.w"), wb.detach() - first_update(wb.grad()));
  }
}

TEST(OwnLoop, AUnitWithoutParametersPassesGradientsOn) {
  Engine engine(config_of(one_step()));
  const Unit a = engine.add_unit("a", Matrix(1.0));
  const Unit tanh = engine.add_unit("tanh", torch::nn::Tanh());
  engine.initialize();
  engine.backward(engine.forward(tanh, engine.forward(a, ones())).sum());
  engine.step();
  Tensor w = torch::eye(4).requires_grad_(true);
  ones().mm(w).tanh().sum().backward();
  expect_near(engine.parameter("a.w"), w.detach() - first_update(w.grad()));
}

TEST(OwnLoop, AUnitMayReturnItsWeights) {
  Engine engine(config_of(one_step()));
  Matrix matrix(3.0);
  const Unit a = engine.add_unit("a", matrix.ptr(),
                                 [matrix](const Tensors&) { return Tensors{matrix->w.t()}; });
  engine.initialize();
  const Tensor w = engine.forward(a, Tensors{}).front();
  EXPECT_EQ(w[1][1].item<float>(), 3.0F);
  engine.backward((w * torch::arange(16).view({4, 4})).sum());
  engine.step();
  expect_near(
      engine.parameter("a.w"),
      torch::eye(4) * 3 - first_update(torch::arange(16).view({4, 4}).t().to(torch::kFloat)));
}

TEST(OwnLoop, AnotherOrderOfUnitsCostsTimeOnly) {
  const auto course = [](const std::string& keys) {
    LoopSetup setup;
    setup.sluice_keys = keys;
    Trained trained(config_of(setup), Model());
    trained.engine.initialize();
    std::vector<double> losses;
    for (int i = 0; i < 16; ++i) {
      Tensor x = trained.units[0](batch(i).inputs);
      for (int b = 0; b < 3; ++b) x = x + trained.units[1 + (b * (i % 3)) % 3](x);
      trained.engine.backward(cross_entropy(trained.units.back()(x), batch(i).targets));
      losses.push_back(trained.engine.step().loss);
    }
    return losses;
  };
  EXPECT_EQ(course(""), course("\"overlap\": false, "));
}

TEST(OwnLoop, TellsTheScheduledRateWhereGroupsHaveOthers) {
  LoopSetup setup = one_step();
  setup.sluice_keys = R"("groups": [{"match": "*", "lr": 0.5}], )";
  Trained trained(config_of(setup), Model());
  trained.engine.initialize();
  EXPECT_EQ(trained.train(0).learning_rate, setup.learning_rate);
}

}  // namespace
}  // namespace sluice::test
