// Mistakes in a loop of the user's own, and numbers that are not finite.

#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "captured_log.hpp"
#include "engine_support.hpp"
#include "soft_limit.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::array<std::pair<const char*, const char*>, 4> kTwoRanks = {
    {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}};

class OwnLoopErrors : public ::testing::Test {
 protected:
  explicit OwnLoopErrors(const LoopSetup& setup = {.accumulation = 1})
      : trained_(std::in_place, config_of(setup), Model()) {
    trained_->engine.initialize();
  }
  Engine& engine() { return trained_->engine; }
  Tensor loss(int index = 0) { return trained_->loss(batch(index)); }
  // The engine is as good as before.
  void expect_goes_on() { EXPECT_TRUE(trained_->train(1).updated); }

  std::optional<Trained> trained_;
};

// Each of them would train by itself.
TEST_F(OwnLoopErrors, SeveralProcessesOfALauncherAreRefused) {
  for (const auto& [name, value] : kTwoRanks) ::setenv(name, value, 1);
  const std::string error = message_of([] { Engine(config_of({.accumulation = 1})); });
  for (const auto& [name, value] : kTwoRanks) ::unsetenv(name);
  EXPECT_THAT(error, HasSubstr("rank 1 of 2 (torchrun): a C++ loop of your own trains with one"));
}

TEST_F(OwnLoopErrors, AStepNeedsABackward) {
  EXPECT_THAT(message_of([&] { engine().step(); }), HasSubstr("step() without a backward()"));
  trained_->train(0);
  EXPECT_THAT(message_of([&] { engine().step(); }), HasSubstr("step() without a backward()"));
  expect_goes_on();
}

TEST_F(OwnLoopErrors, ALossHasOneBackward) {
  const Tensor once = loss();
  engine().backward(once);
  EXPECT_THAT(message_of([&] { engine().backward(once); }),
              HasSubstr("backward was called before on this loss"));
  EXPECT_THAT(message_of([&] { engine().step(); }), HasSubstr("step() without a backward()"))
      << "the step's gradients are dropped";
  expect_goes_on();
}

// Freezing a parameter during a forward alone holds for the backward, whether or not the unit is
// called again for it.
TEST(OwnLoop, AParameterThatWasFrozenDuringAForwardHasNoGradient) {
  const auto norm_with = [](const char* activations) {
    LoopSetup setup;
    setup.accumulation = 1;
    setup.sluice_keys = std::string("\"activations\": \"") + activations + "\", ";
    Trained trained(config_of(setup), Model());
    trained.engine.initialize();
    Tensor weight = trained.model.blocks[1]->up->weight;
    weight.set_requires_grad(false);
    const Tensor loss = trained.loss(batch(0));
    weight.set_requires_grad(true);
    trained.engine.backward(loss);
    const double norm = trained.engine.step().gradient_norm;
    EXPECT_TRUE(weight.requires_grad());
    return norm;
  };
  EXPECT_EQ(norm_with("recompute"), norm_with("keep"));
}

TEST_F(OwnLoopErrors, ACallOfAUnitHasOneBackward) {
  const Tensor out = engine().forward(trained_->units[0], batch(0).inputs).to(torch::kFloat32);
  engine().backward(out.sum());
  EXPECT_THAT(message_of([&] { engine().backward((out * 1).sum()); }),
              HasSubstr("backward was called before on this call of unit embed"));
  expect_goes_on();
}

TEST_F(OwnLoopErrors, ALossMustDependOnAUnit) {
  EXPECT_THAT(message_of([&] { engine().backward(torch::ones({})); }),
              HasSubstr("depends on no unit that trains"));
  const Tensor other = torch::ones({}).requires_grad_(true);
  EXPECT_THAT(message_of([&] { engine().backward(other * 2); }),
              HasSubstr("depends on no unit that trains"));
  EXPECT_THAT(message_of([&] { engine().backward(torch::ones({2})); }),
              HasSubstr("a loss of one element"));
  expect_goes_on();
}

TEST_F(OwnLoopErrors, BackwardIsTheEngines) {
  const Tensor one = loss();
  EXPECT_THAT(message_of([&] { one.backward(); }), HasSubstr("call Engine::backward(loss)"));
  expect_goes_on();
}

TEST_F(OwnLoopErrors, ALossFromBeforeTheUpdateIsRefused) {
  const Tensor stale = loss();
  trained_->train(1);
  EXPECT_THAT(message_of([&] { engine().backward(stale); }),
              HasSubstr("have changed since it was called"));
  expect_goes_on();
}

TEST_F(OwnLoopErrors, AUnitOfAnEngineThatIsGoneIsRefused) {
  const Unit embed = trained_->units[0];
  const Tensor left = loss();  // a tensor of the engine's memory, with its graph
  trained_.reset();
  EXPECT_THAT(message_of([&] { embed(batch(0).inputs); }), HasSubstr("engine that is gone"));
  EXPECT_THAT(message_of([&] { left.backward(); }), HasSubstr("engine that is gone"));
  EXPECT_GT(left.item<double>(), 0);
}

TEST_F(OwnLoopErrors, ReplacedAndConvertedParametersAreRefused) {
  auto& block = trained_->model.blocks[0];
  block->up->to(torch::kFloat64);
  EXPECT_THAT(message_of([&] { loss(); }), AllOf(HasSubstr("h.0.up."), HasSubstr("to()")));
  block->up->to(torch::kBFloat16);
  expect_goes_on();
  block->up->weight.set_data(torch::ones({4 * kWidth, kWidth}, torch::kBFloat16));
  EXPECT_THAT(message_of([&] { loss(); }), HasSubstr("h.0.up.weight was given other bytes"));
  block->up->weight.set_data(torch::empty({0}, torch::kBFloat16));
  block->down->bias.set_requires_grad(false);
  EXPECT_THAT(message_of([&] { trained_->train(0); }),
              HasSubstr("h.0.down.bias was to be trained"));
  block->down->bias.set_requires_grad(true);
  expect_goes_on();
  block->up->register_parameter("more", torch::ones({2}));
  EXPECT_THAT(message_of([&] { loss(); }), HasSubstr("unit h.0 has other parameters"));
}

TEST_F(OwnLoopErrors, UnitsDoNotCallEachOther) {
  trained_.reset();
  Engine engine(config_of({}));
  const Unit inner = engine.add_unit("inner", torch::nn::Linear(4, 4));
  const Unit outer = engine.add_unit("outer", torch::nn::Linear(4, 4).ptr(),
                                     [&](const Tensors& x) { return engine.forward(inner, x); });
  engine.initialize();
  const Tensor x = torch::ones({2, 4}, torch::kBFloat16);
  EXPECT_THAT(message_of([&] { engine.forward(outer, x); }), HasSubstr("neither another unit"));
  EXPECT_NO_THROW(engine.forward(inner, x));
}

TEST_F(OwnLoopErrors, InputsThatChangeInPlaceAreRefused) {
  trained_.reset();
  Engine engine(config_of({.sluice_keys = "\"activations\": \"recompute\", "}));
  torch::nn::Linear linear(4, 4);
  const Unit plain = engine.add_unit("plain", linear);
  const Unit changes =
      engine.add_unit("changes", torch::nn::Linear(4, 4).ptr(),
                      [](const Tensors& x) { return Tensors{x[0].detach().add_(1)}; });
  engine.initialize();
  Tensor x = torch::ones({2, 4}, torch::kBFloat16);
  EXPECT_THAT(message_of([&] { engine.forward(changes, x); }),
              HasSubstr("unit changes changes an input in place"));
  const Tensor y = engine.forward(plain, x);
  x.add_(1);
  EXPECT_THAT(message_of([&] { engine.backward(y.sum()); }),
              HasSubstr("an input of unit plain was changed in place"));
}

TEST_F(OwnLoopErrors, AModuleStaysInItsModeUntilItsBackward) {
  trained_.reset();
  Trained trained(config_of({.sluice_keys = "\"activations\": \"recompute\", "}), Model());
  trained.engine.initialize();
  const Tensor loss = trained.loss(batch(0));
  trained.model.blocks[2]->eval();
  EXPECT_THAT(message_of([&] { trained.engine.backward(loss); }),
              HasSubstr("unit h.2 was set to train() or eval()"));
}

TEST_F(OwnLoopErrors, WhatIsAskedBeforeInitializeOrWronglySaysSo) {
  EXPECT_THAT(message_of([&] { engine().add_unit("late", torch::nn::Linear(2, 2)); }),
              HasSubstr("unit late is added after initialize()"));
  EXPECT_THAT(message_of([&] { engine().initialize(); }), HasSubstr("is called twice"));
  EXPECT_THAT(message_of([&] { engine().parameter("h.9.w"); }),
              HasSubstr("no unit has a parameter"));
  EXPECT_THAT(message_of([&] {
                engine().forward(trained_->units[1], Tensors{torch::ones({1}), torch::ones({1})});
              }),
              HasSubstr("unit h.0 was given 2 inputs"));
  trained_.reset();
  Engine engine(config_of({}));
  const Unit unit = engine.add_unit("u", torch::nn::Linear(4, 4));
  const Tensor x = torch::ones({1, 4});
  EXPECT_THAT(message_of([&] { engine.forward(unit, x); }), HasSubstr("call initialize() first"));
  EXPECT_THAT(message_of([&] { engine.add_unit("u", torch::nn::Linear(4, 4)); }),
              HasSubstr("two units u"));
  torch::nn::Sequential pair(torch::nn::Linear(4, 4));
  engine.add_unit("v", pair);
  engine.add_unit("v.0", torch::nn::Linear(4, 4));
  EXPECT_THAT(message_of([&] { engine.initialize(); }),
              HasSubstr("two parameters are named v.0.weight, one of them in unit v.0"));
  EXPECT_THAT(message_of([&] { Engine(config_of({})).initialize(); }),
              HasSubstr("no unit has a parameter"));
  EXPECT_THAT(
      message_of([&] { Engine(config_of({.sluice_keys = "\"activations\": \"offload\", "})); }),
      HasSubstr("is for the built-in model"));
}

TEST(OwnLoopLog, ShowsLinesOfTheLibrary) {
  std::string lines;
  Engine::set_log_sink([&](LogLevel, std::string_view line) { lines += std::string(line) + "\n"; });
  Trained trained(config_of({.more_keys = R"("memory_breakdown": true, )"}), Model());
  trained.engine.initialize();
  Engine::set_log_sink({});
  EXPECT_THAT(lines, HasSubstr("memory_breakdown"));
}

TEST_F(OwnLoopErrors, ALossThatIsNotFiniteSkipsTheStep) {
  const CapturedLog log;
  const std::string before = bytes_of(engine().parameter("h.1.down.bias"));
  engine().backward(loss() * std::numeric_limits<double>::quiet_NaN());
  const StepResult result = engine().step();
  EXPECT_FALSE(result.updated);
  EXPECT_EQ(result.non_finite, "the loss");
  EXPECT_EQ(result.step, 1);
  EXPECT_TRUE(log.contains("step 1: the loss is not finite; no update"));
  EXPECT_TRUE(bytes_of(engine().parameter("h.1.down.bias")) == before);
  expect_goes_on();
}

class NotFinite : public OwnLoopErrors, public ::testing::WithParamInterface<double> {
 protected:
  NotFinite() : OwnLoopErrors({.accumulation = 2, .clipping = GetParam()}) {}
};

TEST_P(NotFinite, AGradientThatIsNotFiniteSkipsTheStepAndNamesTheParameter) {
  std::vector<std::string> before;
  for (const std::string& name : parameter_names())
    before.push_back(bytes_of(engine().parameter(name)));
  // Infinite gradients of a finite loss: the square root's at zero.
  const Tensor x = torch::zeros({2, kLength, kWidth}, torch::kBFloat16);
  const Tensor out = engine().forward(trained_->units[2], x).to(torch::kFloat32);
  engine().backward((out * 0).abs().sqrt().sum());
  engine().step();
  engine().backward(loss(1));
  const StepResult result = engine().step();
  EXPECT_FALSE(result.updated);
  EXPECT_THAT(result.non_finite, HasSubstr("the gradient of h.1."));
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(bytes_of(engine().parameter(parameter_names()[i])) == before[i]);
  trained_->train(3);
  EXPECT_TRUE(trained_->train(4).updated);
}
INSTANTIATE_TEST_SUITE_P(Clipping, NotFinite, ::testing::Values(0.0, 1.0));

// Inputs of zero: the weight's gradient is 0, so with an epsilon of 0 its update is 0 / 0.
TEST_F(OwnLoopErrors, ANonFiniteUpdateEndsTrainingUntilACheckpointReplacesIt) {
  trained_.reset();
  const TempDir checkpoints;
  Engine engine(config_of({.accumulation = 1, .epsilon = 0}));
  const Unit unit = engine.add_unit("linear", torch::nn::Linear(4, 4));
  torch::nn::Linear frozen(4, 4);  // it has no update of its own
  for (Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);
  const Unit other = engine.add_unit("other", frozen);
  engine.initialize();
  engine.save_checkpoint(checkpoints.path());
  const std::string before = bytes_of(engine.parameter("linear.weight"));
  const auto step_of = [&](const Tensor& x) {
    engine.backward(engine.forward(unit, x).sum());
    engine.step();
  };
  const auto failure =
      AllOf(HasSubstr("step 1: the update of linear.weight (element 0 of 16)"),
            HasSubstr("\"eps\": 0"), HasSubstr("The states were updated in place"));
  step_of(torch::zeros({2, 4}, torch::kBFloat16));
  EXPECT_THAT(message_of([&] { engine.finish(); }), failure);
  EXPECT_THAT(message_of([&] { engine.finish(); }), failure) << "no later call saves it";
  EXPECT_THAT(message_of([&] { engine.save_checkpoint(checkpoints.path()); }), failure);
  const Tensor x = torch::ones({2, 4}, torch::kBFloat16);
  for (int time = 0; time < 2; ++time) {
    EXPECT_THAT(message_of([&] { engine.forward(unit, x); }), failure) << time;
    EXPECT_THAT(message_of([&] { engine.forward(other, x); }), failure) << time;
    EXPECT_THAT(message_of([&] { engine.parameter("linear.weight"); }), failure) << time;
    EXPECT_THAT(message_of([&] { engine.parameter("other.weight"); }), failure) << time;
  }
  EXPECT_EQ(engine.load_checkpoint(checkpoints.path()), 0);
  EXPECT_TRUE(bytes_of(engine.parameter("linear.weight")) == before);
  step_of(x);
  EXPECT_NO_THROW(engine.finish());
}

// Every rate fails then, so the message does not name it.
TEST_F(OwnLoopErrors, AGradientWhoseSquaresAreBeyondFp32IsNamed) {
  trained_.reset();
  Engine engine(config::parse_train_config(
      R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "gradient_clipping": 0,
          "optimizer": {"type": "Adagrad", "params": {"lr": 1e-6}},
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
          "sluice": {"device": "host", "host_bytes": "64MiB"}})",
      "ds.json"));
  const Unit unit = engine.add_unit("linear", torch::nn::Linear(4, 4));
  engine.initialize();
  engine.backward(engine.forward(unit, torch::ones({2, 4}, torch::kBFloat16)).sum() * 1e20);
  engine.step();
  EXPECT_THAT(
      message_of([&] { engine.finish(); }),
      AllOf(HasSubstr("The likely cause is the gradient, whose norm in this step is 8.9"),
            HasSubstr("Set gradient_clipping. "), testing::Not(HasSubstr("learning rate"))));
}

TEST_F(OwnLoopErrors, AnErrorInABackwardDropsTheStepsGradients) {
  trained_.reset();
  const Course undisturbed = run({}, 0, 4);
  Trained trained(config_of({}), Model());
  bool fails = false;
  torch::nn::Linear linear(kWidth, kWidth);
  const Unit risky = trained.engine.add_unit("risky", linear.ptr(), [&](const Tensors& x) {
    const Tensor out = x[0] * 1;
    out.register_hook([&](const Tensor&) {
      if (fails) throw std::runtime_error("out of luck");
    });
    return Tensors{out};
  });
  trained.engine.initialize();
  fails = true;
  trained.engine.backward(trained.loss(batch(0)));
  trained.engine.step();
  const Tensor x = trained.engine.forward(trained.units[0], batch(5).inputs);
  EXPECT_THAT(message_of([&] {
                trained.engine.backward(trained.engine.forward(risky, x).to(torch::kFloat32).sum());
              }),
              HasSubstr("out of luck"));
  EXPECT_EQ(course_of(trained, 4, 2).losses, undisturbed.losses);
}

TEST_F(OwnLoopErrors, ADeviceBudgetThatIsTooSmallSaysByHowMuch) {
  trained_.reset();
  Trained refused(config_of({.device_bytes = "1MiB"}), Model());
  EXPECT_ANY_THROW(refused.engine.initialize());
  EXPECT_THAT(message_of([&] { refused.engine.initialize(); }), HasSubstr("has failed before"));
  EXPECT_THAT(message_of([&] {
                Trained trained(config_of({.device_bytes = "1MiB"}), Model());
                trained.engine.initialize();
              }),
              AllOf(HasSubstr("the run does not fit"), HasSubstr("the device tier is short by")));
  Trained trained(config_of({.device_bytes = "2MiB"}), Model());
  trained.engine.initialize();
  EXPECT_THAT(trained.engine.plan_table(), HasSubstr("activations are not planned"));
  EXPECT_THAT(message_of([&] { torch::ones({1 << 20}); }),
              AllOf(HasSubstr("device"), HasSubstr("available")));
  EXPECT_NO_THROW(trained.train(0));
}

TEST(OwnLoopMonitors, WaitWhileTheirFilesCannotBeWritten) {
  const TempDir folder;
  config::TrainConfig config = config_of({.accumulation = 1});
  config.monitors.csv = {.enabled = true, .output_path = folder.path(), .job_name = "run"};
  Trained trained(config, Model());
  trained.engine.initialize();
  trained.train(0);
  {
    const CapturedLog log;
    const FileLimit limit(1);
    EXPECT_EQ(trained.train(1).step, 2);
    EXPECT_EQ(trained.train(2).step, 3);
    EXPECT_TRUE(log.contains("values of the monitors wait from step 2 on"));
    EXPECT_THROW(trained.engine.finish(), IoError) << "values are missing";
  }
  trained.engine.finish();
  std::ostringstream rows;
  rows << std::ifstream(folder.file("run/Train_Samples_lr.csv")).rdbuf();
  EXPECT_EQ(rows.str(), "step,lr\r\n2,0.01\r\n4,0.01\r\n6,0.01\r\n");
}

TEST(OwnLoopMonitors, GoOnAtTheSamplesSoFarWithAnotherBatch) {
  const TempDir folder;
  for (const int accumulation : {1, 2}) {
    config::TrainConfig config = config_of({.accumulation = accumulation});
    config.monitors.csv = {.enabled = true, .output_path = folder.path(), .job_name = "run"};
    Trained trained(config, Model());
    trained.engine.initialize();
    if (accumulation > 1) trained.engine.load_checkpoint(folder.file("saved"));
    trained.train(0);
    trained.train(1);
    trained.engine.save_checkpoint(folder.file("saved"));
    trained.engine.finish();
  }
  std::ostringstream rows;
  rows << std::ifstream(folder.file("run/Train_Samples_lr.csv")).rdbuf();
  EXPECT_EQ(rows.str(), "step,lr\r\n2,0.01\r\n4,0.01\r\n8,0.01\r\n");
}

}  // namespace
}  // namespace sluice::test
