// A loop of the user's own whose units are updated in the backward that completes their gradients.

#include <gmock/gmock.h>

#include "engine_support.hpp"
#include "sluice/base/error.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

constexpr double kDropout = 0.1;
constexpr const char* kKey = "\"optimizer_in_backward\": true, ";

TEST(OptimizerInBackward, GivesTheBitsOfUpdatesByStep) {
  for (const int accumulation : {1, 3}) {
    LoopSetup setup{.accumulation = accumulation, .clipping = 0};
    const Course expected = run(setup, kDropout);
    for (const std::string states : {"none", "cpu", "nvme"}) {
      for (const std::string weights : {"cpu", "nvme"}) {
        for (const std::string keys :
             {"", "\"overlap\": false, ", "\"activations\": \"recompute\", "}) {
          SCOPED_TRACE(states + " " + weights + " " + keys + std::to_string(accumulation));
          setup.optimizer_device = states;
          setup.param_device = states == "none" ? "none" : weights;
          setup.sluice_keys = keys + kKey;
          expect_same(run(setup, kDropout), expected);
          setup.device_bytes = "auto";  // gradients are summed at home
          expect_same(run(setup, kDropout), expected);
          setup.device_bytes = "64MiB";
        }
      }
    }
  }
}

TEST(OptimizerInBackward, GradientsShareSlots) {
  LoopSetup setup{.accumulation = 1, .clipping = 0};
  const auto plan_with = [&](const std::string& keys) {
    setup.sluice_keys = keys;
    Trained trained(config_of(setup), Model(0, 12));
    trained.engine.initialize();
    return trained.engine.plan_table();
  };
  EXPECT_THAT(plan_with(""), Not(HasSubstr("gradient slots")));
  EXPECT_THAT(plan_with(kKey), HasSubstr("gradient slots"));
  setup.accumulation = 2;  // sums wait between micro-batches
  EXPECT_THAT(plan_with(kKey), Not(HasSubstr("gradient slots")));
}

std::vector<std::string> weights_of(Trained& trained) {
  std::vector<std::string> weights;
  for (const std::string& name : parameter_names())
    weights.push_back(bytes_of(trained.engine.parameter(name)));
  return weights;
}

// The second call's graph has no backward yet when the first one's has ended.
TEST(OptimizerInBackward, AUnitThatIsCalledTwiceIsUpdatedOnce) {
  const auto weights_with = [](const std::string& keys) {
    Trained trained(config_of({.accumulation = 1, .clipping = 0, .sluice_keys = keys}), Model());
    trained.engine.initialize();
    for (int step = 0; step < 4; ++step) {
      const Batch on = batch(step);
      Tensor x = trained.engine.forward(trained.units[0], on.inputs);
      for (const std::size_t unit : {1U, 2U, 1U, 3U, 2U}) {
        if (unit == 3U && step % 2 == 1) continue;  // a unit that some steps leave out
        x = x + trained.engine.forward(trained.units[unit], x);
      }
      trained.engine.backward(
          cross_entropy(trained.engine.forward(trained.units.back(), x), on.targets));
      trained.engine.step();
    }
    return weights_of(trained);
  };
  EXPECT_EQ(weights_with(kKey), weights_with(""));
}

Tensor failing(const Tensor& x) {
  x.register_hook([](const Tensor& gradient) -> Tensor {
    if (gradient.defined()) throw std::runtime_error("on purpose");
    return gradient;
  });
  return x;
}

std::vector<std::string> weights_of_two_steps() {
  Trained plain(config_of({.accumulation = 1, .clipping = 0}), Model());
  plain.engine.initialize();
  plain.train(0);
  plain.train(1);
  return weights_of(plain);
}

TEST(OptimizerInBackward, ABackwardThatFailsHalfWayLeavesAMix) {
  const std::vector<std::string> undisturbed = weights_of_two_steps();
  const TempDir folder;
  Trained trained(config_of({.accumulation = 1, .clipping = 0, .sluice_keys = kKey}), Model());
  trained.engine.initialize();
  trained.train(0);
  trained.engine.save_checkpoint(folder.path());
  const Batch on = batch(1);
  Tensor x = failing(trained.engine.forward(trained.units[0], on.inputs));
  for (std::size_t i = 1; i + 1 < trained.units.size(); ++i)
    x = x + trained.engine.forward(trained.units[i], x);
  const Tensor loss = cross_entropy(trained.engine.forward(trained.units.back(), x), on.targets);
  EXPECT_ANY_THROW(trained.engine.backward(loss));
  EXPECT_THAT(message_of<Error>([&] { trained.train(1); }), HasSubstr("mix of two steps"));
  EXPECT_THAT(message_of<Error>([&] { trained.engine.save_checkpoint(folder.path() + "/b"); }),
              HasSubstr("mix of two steps"));
  trained.engine.load_checkpoint(folder.path());
  trained.train(1);
  EXPECT_EQ(weights_of(trained), undisturbed);
}

// The engine is as it was after each of them.
TEST(OptimizerInBackward, AnotherBackwardBeforeStepChangesNothing) {
  const std::vector<std::string> undisturbed = weights_of_two_steps();
  Trained trained(config_of({.accumulation = 1, .clipping = 0, .sluice_keys = kKey}), Model());
  trained.engine.initialize();
  const Tensor loss = trained.loss(batch(0));
  trained.engine.backward(loss);
  EXPECT_THAT(message_of<InvalidArgument>([&] { trained.engine.backward(trained.loss(batch(1))); }),
              HasSubstr("call step() first"));
  EXPECT_ANY_THROW(trained.engine.backward(loss));
  EXPECT_ANY_THROW(trained.engine.backward(torch::ones({2})));
  EXPECT_THAT(message_of<InvalidArgument>([&] { trained.engine.finish(); }),
              HasSubstr("comes after step()"));
  EXPECT_TRUE(trained.engine.step().updated);
  trained.train(1);
  EXPECT_EQ(weights_of(trained), undisturbed);
}

// The cause of an error of step() is mended, and step() called again.
TEST(OptimizerInBackward, AStepIsCalledAgainAfterAnError) {
  Trained trained(config_of({.accumulation = 1, .clipping = 0, .sluice_keys = kKey}), Model());
  trained.engine.initialize();
  trained.engine.backward(trained.loss(batch(0)));
  trained.model.blocks[1]->up->weight.set_requires_grad(false);
  EXPECT_THAT(message_of<InvalidArgument>([&] { trained.engine.step(); }),
              HasSubstr("does not require a gradient"));
  trained.model.blocks[1]->up->weight.set_requires_grad(true);
  EXPECT_TRUE(trained.engine.step().updated);
  EXPECT_TRUE(trained.train(1).updated);
}

TEST(OptimizerInBackward, ALossThatIsNotFiniteSkipsTheStep) {
  Trained trained(config_of({.accumulation = 1, .clipping = 0, .sluice_keys = kKey}), Model());
  trained.engine.initialize();
  const std::string before = bytes_of(trained.engine.parameter("h.2.down.weight"));
  trained.engine.backward(trained.loss(batch(0)) * INFINITY);
  EXPECT_FALSE(trained.engine.step().updated);
  EXPECT_EQ(bytes_of(trained.engine.parameter("h.2.down.weight")), before);
  EXPECT_TRUE(trained.train(1).updated);
}

TEST(OptimizerInBackward, NeedsNoNormOfAllGradients) {
  EXPECT_THAT(message_of<InvalidArgument>([] { config_of({.sluice_keys = kKey}); }),
              HasSubstr("gradient_clipping needs the norm of all gradients"));
}

}  // namespace
}  // namespace sluice::test
