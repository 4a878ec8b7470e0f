// A loop of a user's own leaves the modules their buffers, and at the end their weights.

#include <gmock/gmock.h>

#include "captured_log.hpp"
#include "engine_support.hpp"
#include "sluice/base/error.hpp"

namespace sluice::test {
namespace {

using ::testing::HasSubstr;

// A batch norm, whose statistics each forward in training changes.
struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : linear(register_module("linear", torch::nn::Linear(8, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))) {}
  Tensor forward(const Tensor& x) { return torch::relu(norm->forward(linear->forward(x))); }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Normed);

Tensor samples(int step) {
  torch::manual_seed(std::uint64_t{100} + static_cast<std::uint64_t>(step));
  return torch::randn({16, 8}) * (1 + step) + step;
}

Tensor loss_of(const Tensor& y) {
  return (y - 0.5).pow(2).mean();
}

constexpr int kSteps = 5;

struct Statistics {
  std::string mean, variance;
  std::int64_t batches = 0;
  double evaluated = 0;
  bool operator==(const Statistics&) const = default;
};

Statistics statistics_with(const std::string& activations) {
  torch::manual_seed(1);
  Normed module;
  Engine engine(config_of(fp32_setup(activations)));
  const Unit unit = engine.add_unit("normed", module);
  engine.initialize();
  for (int step = 0; step < kSteps; ++step) {
    engine.backward(loss_of(unit(samples(step))));
    engine.step();
  }
  const bool computes_again = engine.counters().recomputed_calls > 0;
  EXPECT_EQ(computes_again, activations != "keep") << activations;
  module->eval();
  const torch::NoGradGuard no_grad;
  return {bytes_of(module->norm->running_mean), bytes_of(module->norm->running_var),
          module->norm->num_batches_tracked.item<std::int64_t>(),
          loss_of(unit(samples(2))).item<double>()};
}

TEST(OwnLoopBuffers, AreChangedOnceByAStepThatComputesAgain) {
  const Statistics kept = statistics_with("keep");
  EXPECT_EQ(kept.batches, kSteps);
  for (const char* activations : {"recompute", "auto"})
    EXPECT_EQ(statistics_with(activations), kept) << activations;
}

LoopSetup in_memory(bool bf16) {
  LoopSetup setup;
  setup.bf16 = bf16;
  setup.accumulation = 1;
  return setup;
}

class OwnLoopModules : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnLoopModules, HaveTheirTrainedWeightsAgain) {
  const TempDir swap;
  for (const bool bf16 : {false, true}) {
    LoopSetup setup = in_memory(bf16);
    setup.optimizer_device = setup.param_device = GetParam();
    const std::string folder = swap.file(bf16 ? "bf16" : "fp32");
    std::filesystem::create_directory(folder);
    Model model;
    CapturedLog log;
    std::vector<std::string> before;
    {
      Trained trained(config_of(setup, folder), model);
      EXPECT_THROW(trained.engine.restore_modules(), InvalidArgument) << "before initialize()";
      trained.engine.initialize();
      for (int i = 0; i < 3; ++i) trained.train(i);
      for (const std::string& name : parameter_names())
        before.push_back(bytes_of(trained.engine.parameter(name)));
      EXPECT_TRUE(bytes_of(trained.engine.parameter("head.weight")) ==
                  bytes_of(trained.engine.parameter("embed.tokens.weight")));
      trained.engine.restore_modules();
      EXPECT_EQ(model.embed->positions.numel(), kLength * kWidth);
      trained.engine.finish();
      EXPECT_THROW(trained.loss(batch(0)), InvalidArgument);
      EXPECT_THROW(trained.engine.restore_modules(), InvalidArgument);
    }
    EXPECT_TRUE(model.head->weight.is_same(model.embed->tokens->weight)) << "still tied";
    EXPECT_TRUE(model.head->weight.requires_grad());
    const std::vector<Tensor> after = {
        model.embed->positions,        model.embed->tokens->weight, model.blocks[0]->up->weight,
        model.blocks[1]->norm->weight, model.blocks[1]->down->bias, model.blocks[2]->down->weight,
        model.head->norm->bias,
    };
    for (std::size_t i = 0; i < after.size(); ++i)
      EXPECT_TRUE(bytes_of(after[i]) == before[i]) << parameter_names()[i];
    EXPECT_EQ(after[0].scalar_type(), bf16 ? torch::kBFloat16 : torch::kFloat32);
    // As any module's: saved, and read by another.
    std::stringstream file;
    torch::save(model.blocks[0], file);
    Block read(0.0);
    if (bf16) read->to(torch::kBFloat16);
    torch::load(read, file);
    EXPECT_TRUE(torch::equal(read->up->weight, model.blocks[0]->up->weight));
    EXPECT_FALSE(log.contains("end with their engine"));
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, OwnLoopModules, ::testing::Values("cpu", "nvme"));

TEST(OwnLoopModules, AWarningSaysWhereTrainedWeightsEndWithTheEngine) {
  const TempDir directory;
  const auto logged = [&](const std::function<void(Trained&)>& at_the_end) {
    CapturedLog log;
    {
      Trained trained(config_of(in_memory(true)), Model());
      trained.engine.initialize();
      trained.train(0);
      at_the_end(trained);
    }
    return log.contains("the weights of step 1 end with their engine");
  };
  EXPECT_TRUE(logged([](Trained&) {}));
  EXPECT_TRUE(logged([](Trained& trained) { trained.engine.finish(); }));
  EXPECT_FALSE(
      logged([&](Trained& trained) { trained.engine.save_checkpoint(directory.file("a")); }));
  EXPECT_FALSE(logged([](Trained& trained) { trained.engine.restore_modules(); }));
}

// Files of weights and states would not find them again.
TEST(OwnLoopModules, HaveNamesInUtf8) {
  Engine engine(config_of({}));
  EXPECT_THAT(message_of([&] { engine.add_unit("a\xff", torch::nn::Linear(4, 4)); }),
              HasSubstr("of a unit or a parameter is no UTF-8"));
  torch::nn::Sequential named;
  named->push_back("\xe9", torch::nn::Linear(4, 4));
  EXPECT_THAT(message_of([&] { engine.add_unit("b", named); }), HasSubstr("is no UTF-8"));
  engine.add_unit("\u00e9", torch::nn::Linear(4, 4));
}

}  // namespace
}  // namespace sluice::test
