// A loop of the user's own under autocast: fp32 weights, 16-bit arithmetic.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <malloc.h>
#include <utility>

#include "engine_support.hpp"

namespace sluice::test {
namespace {

// As Python's torch.autocast("cpu", torch.bfloat16), but that its end need not be in a scope.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() { end(); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  void end() {
    if (std::exchange(ended_, true)) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }

 private:
  bool ended_ = false;
};

std::vector<double> norms(const std::string& activations, bool autocast) {
  Trained trained(config_of(fp32_setup(activations)), Model());
  trained.engine.initialize();
  std::vector<double> norms;
  for (int i = 0; i < 4; ++i) {
    Tensor loss;
    if (autocast) {
      const Autocast on;
      loss = trained.loss(batch(i));
    } else {
      loss = trained.loss(batch(i));
    }
    trained.engine.backward(loss);
    norms.push_back(trained.engine.step().gradient_norm);
  }
  return norms;
}

TEST(OwnLoopAutocast, BackwardComputesAgainAsForwardDid) {
  const std::vector<double> kept = norms("keep", true);
  EXPECT_NE(kept, norms("keep", false));
  EXPECT_EQ(kept, norms("recompute", true));
}

// Autocast keeps a 16-bit copy of each weight until it ends: of all units that were called. On the
// CPU they are LibTorch's own memory.
TEST(OwnLoopAutocast, LeavesNoCopiesOfWeights) {
  constexpr int kBlocks = 12;
  Trained trained(config_of(fp32_setup("recompute")), Model(0, kBlocks));
  std::size_t copies = 0;
  for (const Tensor& weight : trained.model.blocks[0]->parameters())
    copies += kBlocks * sizeof(at::BFloat16) * static_cast<std::size_t>(weight.numel());
  trained.engine.initialize();
  const Autocast on;
  const Tensor loss = trained.loss(batch(0));
  const std::size_t before = ::mallinfo2().uordblks;
  at::autocast::clear_cache();
  EXPECT_LT(before - ::mallinfo2().uordblks, copies / 2);
}

// A loop within one autocast: what it keeps of the weights is of before the step.
TEST(OwnLoopAutocast, SeesTheWeightsOfTheLastStep) {
  const auto train = [](bool around_all) {
    Trained trained(config_of(fp32_setup("keep")), Model());
    trained.engine.initialize();
    std::vector<double> losses;
    Autocast all;
    for (int i = 0; i < 4; ++i) {
      Tensor loss = trained.loss(batch(0));
      if (!around_all) at::autocast::clear_cache();
      trained.engine.backward(loss);
      losses.push_back(trained.engine.step().loss);
    }
    return losses;
  };
  EXPECT_EQ(train(true), train(false));
  EXPECT_LT(train(true).back(), train(true).front());
}

// Its weight is what autocast converts, and keeps.
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(std::int64_t in, std::int64_t out)
      : weight_(register_parameter("weight", torch::randn({out, in}) * 0.2)) {}
  Tensor forward(const Tensor& input) { return torch::linear(input, weight_); }

 private:
  Tensor weight_;
};
TORCH_MODULE(Linear);

std::vector<double> losses_of_linears(const std::string& activations) {
  torch::manual_seed(7);
  Linear first(kWidth, kWidth);
  Linear last(kWidth, kVocabulary);
  Engine engine(config_of(fp32_setup(activations)));
  const Unit a = engine.add_unit("first", first);
  const Unit b = engine.add_unit("last", last);
  engine.initialize();
  const Tensor input = torch::ones({2, kLength, kWidth}) * 0.3;
  std::vector<double> losses;
  for (int i = 0; i < 5; ++i) {
    Autocast on;
    const Tensor output = engine.forward(b, engine.forward(a, input));
    const Tensor loss = cross_entropy(output, batch(0).targets);
    on.end();
    engine.backward(loss);
    losses.push_back(engine.step().loss);
  }
  return losses;
}

// A backward that computes units again converts their weights, after the user's autocast.
TEST(OwnLoopAutocast, KeepsNothingOfABackwardThatComputesAgain) {
  const std::vector<double> kept = losses_of_linears("keep");
  EXPECT_EQ(kept, losses_of_linears("recompute"));
  EXPECT_LT(kept.back(), kept.front());
}

}  // namespace
}  // namespace sluice::test
