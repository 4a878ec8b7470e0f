// Parameters that a unit writes to in a call, that are empty, or that a forked child asks for.

#include <gmock/gmock.h>

#include <functional>

#include "engine_support.hpp"
#include "in_child.hpp"

namespace sluice::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct WeightImpl : torch::nn::Module {
  explicit WeightImpl(const Tensor& values) : weight(register_parameter("weight", values)) {}
  Tensor weight;
};
TORCH_MODULE(Weight);

// An engine of one unit, which computes with what `changed` makes of its weight.
struct WithChange {
  WithChange(const char* activations, const std::function<Tensor(const Tensor&)>& changed)
      : engine(config_of(fp32_setup(activations))),
        unit(engine.add_unit("u", weight.ptr(), [this, changed](const Tensors& x) {
          return Tensors{x[0].matmul(changed(weight->weight))};
        })) {
    engine.initialize();
  }
  Tensor forward() { return engine.forward(unit, torch::ones({2, 4})); }

  Weight weight{torch::ones({4, 4})};
  Engine engine;
  Unit unit;
};

const auto kIsRefused = AllOf(HasSubstr("unit u changes its parameter u.weight in a call"),
                              HasSubstr("the change would be lost"));

class OwnLoopWrites : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnLoopWrites, InAForwardAreRefused) {
  const std::vector<std::function<void(const Tensor&)>> writes = {
      [](const Tensor& weight) {
        const torch::NoGradGuard no_grad;
        weight.clamp_(-0.5, 0.5);
      },
      [](const Tensor& weight) { weight.set_data(weight.detach() * 0.5); },
  };
  for (const auto& write : writes) {
    bool writes_now = true;
    WithChange with(GetParam(), [&](const Tensor& weight) {
      if (writes_now) write(weight);
      return weight;
    });
    EXPECT_THAT(message_of([&] { with.forward(); }), kIsRefused);
    {
      const torch::NoGradGuard evaluates;
      EXPECT_THAT(message_of([&] { with.forward(); }), kIsRefused);
    }
    writes_now = false;
    with.engine.backward(with.forward().sum());
    EXPECT_TRUE(with.engine.step().updated);
  }
}

TEST_P(OwnLoopWrites, OfAHookInABackwardAreRefused) {
  WithChange with(GetParam(), [](const Tensor& weight) {
    Tensor copy = weight * 1;
    copy.register_hook([weight](const Tensor&) {
      const torch::NoGradGuard no_grad;
      weight.mul_(2);
    });
    return copy;
  });
  const Tensor loss = with.forward().sum();
  EXPECT_THAT(message_of([&] { with.engine.backward(loss); }), kIsRefused);
}

TEST_P(OwnLoopWrites, ToACopyTrain) {
  WithChange with(GetParam(), [](const Tensor& weight) { return weight.clamp(-0.5, 2); });
  with.engine.backward(with.forward().sum());
  EXPECT_TRUE(with.engine.step().updated);
  EXPECT_LT(with.engine.parameter("u.weight").max().item<float>(), 1);
}

INSTANTIATE_TEST_SUITE_P(Activations, OwnLoopWrites, ::testing::Values("keep", "recompute"));

// Each forward rescales its rows anew.
TEST(OwnLoop, AFrozenEmbeddingMayRescaleItsRows) {
  for (const bool trains : {false, true}) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(8, 4).max_norm(1));
    table->weight.set_requires_grad(trains);
    Engine engine(config_of(fp32_setup("keep")));
    const Unit rows = engine.add_unit("rows", table);
    const Unit linear = engine.add_unit("linear", torch::nn::Linear(4, 4));
    engine.initialize();
    const auto train = [&] {
      const Tensor x = engine.forward(rows, torch::arange(8));
      EXPECT_LT(x.norm(2, 1).max().item<float>(), 1.001F);
      engine.backward(engine.forward(linear, x).sum());
      engine.step();
    };
    if (trains) {
      EXPECT_THAT(message_of(train), HasSubstr("changes its parameter rows.weight"));
    } else {
      EXPECT_NO_THROW(train());
    }
  }
}

TEST(OwnLoop, AParameterWhoseValuesAnEngineBeforeHasTakenSaysSo) {
  torch::nn::Linear linear(4, 4);
  {
    Engine engine(config_of({}));
    engine.add_unit("u", linear);
    engine.initialize();
  }
  Engine engine(config_of({}));
  EXPECT_THAT(message_of([&] { engine.add_unit("u", linear); }),
              AllOf(HasSubstr("parameter u.weight is empty"), HasSubstr("restore_modules()")));
}

TEST(OwnLoop, AForkedChildIsRefused) {
  WithChange with("keep", [](const Tensor& weight) { return weight; });
  const std::string said = run_in_child([&] { return message_of([&] { with.forward(); }); });
  EXPECT_THAT(said, HasSubstr("works in the parent process only"));
  with.engine.backward(with.forward().sum());
  EXPECT_TRUE(with.engine.step().updated);
}

}  // namespace
}  // namespace sluice::test
