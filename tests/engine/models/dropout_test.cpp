#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "bound_gpt2.hpp"
#include "gpt2_functions.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/gpt2.hpp"

namespace sluice::models {
namespace {

using test::BoundGpt2;
using test::random_tokens;
using torch::Tensor;

const DropoutKey kKey{true, 17, 3, 2};

TEST(Dropout, DropsTheAskedShareAndScalesTheRest) {
  constexpr std::int64_t kCount = 1 << 20;
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor y = dropout(torch::ones({kCount}), p, kKey, 1, 1);
    const Tensor kept = y.masked_select(y != 0);
    EXPECT_TRUE((kept == static_cast<float>(1 / (1 - p))).all().item<bool>());
    const double share = 1 - static_cast<double>(kept.numel()) / kCount;
    EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / kCount));
  }
}

TEST(Dropout, NeighboursAreDroppedIndependently) {
  constexpr std::int64_t kCount = 1 << 20;
  const Tensor dropped = (dropout(torch::ones({kCount}), 0.5, kKey, 1, 1) == 0).to(torch::kFloat64);
  for (const std::int64_t distance : {1, 2, 3, 4, 1024}) {
    const Tensor both =
        dropped.narrow(0, 0, kCount - distance) * dropped.narrow(0, distance, kCount - distance);
    EXPECT_NEAR(both.mean().item<double>(), 0.25, 5 * std::sqrt(0.25 * 0.75 / kCount));
  }
}

TEST(Dropout, IsTheIdentityWhenNotTrainingOrWithoutProbability) {
  const Tensor x = torch::randn({100});
  EXPECT_TRUE(dropout(x, 0.5, DropoutKey{}, 1, 1).is_same(x));
  EXPECT_TRUE(dropout(x, 0.0, kKey, 1, 1).is_same(x));
  EXPECT_THROW(dropout(x, 1.0, kKey, 1, 1), InvalidArgument);
  EXPECT_THROW(dropout(x, -0.1, kKey, 1, 1), InvalidArgument);
}

TEST(Dropout, EveryPartOfTheKeyChangesTheMask) {
  const Tensor x = torch::ones({64, 33});
  const Tensor y = dropout(x, 0.5, kKey, 4, 1);
  EXPECT_TRUE(torch::equal(y, dropout(x, 0.5, kKey, 4, 1)));
  const auto differs = [&](const DropoutKey& key, std::int64_t unit, std::int64_t site) {
    return !torch::equal(y, dropout(x, 0.5, key, unit, site));
  };
  EXPECT_TRUE(differs({true, 18, 3, 2}, 4, 1));
  EXPECT_TRUE(differs({true, 17, 4, 2}, 4, 1));
  EXPECT_TRUE(differs({true, 17, 3, 1}, 4, 1));
  EXPECT_TRUE(differs(kKey, 5, 1));
  EXPECT_TRUE(differs(kKey, 4, 2));
}

TEST(Dropout, TheMaskDoesNotDependOnThreadsOrDataType) {
  const Tensor x = torch::ones({300, 401});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensor one = dropout(x, 0.3, kKey, 1, 1);
  at::set_num_threads(3);
  const Tensor three = dropout(x, 0.3, kKey, 1, 1);
  at::set_num_threads(threads);
  EXPECT_TRUE(torch::equal(one, three));
  const Tensor half = dropout(x.to(torch::kBFloat16), 0.3, kKey, 1, 1);
  EXPECT_TRUE(torch::equal(one != 0, half != 0));
}

TEST(Dropout, BackwardUsesTheMaskOfTheForward) {
  const Tensor x = torch::randn({50, 20}).requires_grad_();
  const Tensor y = dropout(x, 0.4, kKey, 1, 1);
  y.backward(torch::ones({50, 20}));
  EXPECT_TRUE(torch::equal(x.grad(), dropout(torch::ones({50, 20}), 0.4, kKey, 1, 1)));
}

config::ModelConfig model_with(double embd, double attn, double resid) {
  config::ModelConfig model = test::tiny_model();
  model.embd_pdrop = embd;
  model.attn_pdrop = attn;
  model.resid_pdrop = resid;
  return model;
}

TEST(Gpt2Dropout, EachProbabilityHasItsOwnEffectAndOnlyInTraining) {
  const torch::NoGradGuard no_grad;
  const auto result = [](const config::ModelConfig& model, bool training) {
    BoundGpt2 gpt2(model, torch::kFloat64);
    const DropoutKey key{training, 1, 1, 0};
    return gpt2.hidden(random_tokens(gpt2.model, 2, 7), key);
  };
  const Tensor plain = result(model_with(0, 0, 0), true);
  EXPECT_TRUE(torch::equal(plain, result(model_with(0.5, 0.5, 0.5), false)));
  const Tensor embd = result(model_with(0.5, 0, 0), true);
  const Tensor attn = result(model_with(0, 0.5, 0), true);
  const Tensor resid = result(model_with(0, 0, 0.5), true);
  for (const Tensor& other : {embd, attn, resid}) EXPECT_FALSE(torch::allclose(plain, other));
  EXPECT_FALSE(torch::allclose(attn, resid));
}

TEST(Gpt2Dropout, GradientsEqualCentralDifferencesUnderFixedMasks) {
  BoundGpt2 gpt2(model_with(0.2, 0.3, 0.2), torch::kFloat64);
  gpt2.bind_gradients();
  const Tensor tokens = random_tokens(gpt2.model, 2, 6);
  const Tensor targets = random_tokens(gpt2.model, 2, 6, 9);
  gpt2.loss(tokens, targets, kKey).backward();
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    for (std::size_t i = 0; i < gpt2.units[u].params.size(); ++i) {
      const zero::ParamLayout& param = gpt2.units[u].params[i];
      for (std::uint64_t element = 0; element < param.count; element += 1 + param.count / 5) {
        const auto at = static_cast<std::int64_t>(param.offset_count + element);
        const double before = gpt2.flat[u][at].item<double>();
        gpt2.flat[u][at] = before + kStep;
        const double above = gpt2.loss(tokens, targets, kKey).item<double>();
        gpt2.flat[u][at] = before - kStep;
        const double below = gpt2.loss(tokens, targets, kKey).item<double>();
        gpt2.flat[u][at] = before;
        ASSERT_NEAR(gpt2.gradient[u][at].item<double>(), (above - below) / (2 * kStep), 5e-8)
            << param.name << " element " << element;
      }
    }
  }
}

TEST(Gpt2Dropout, AttentionDropoutKeepsTheMean) {
  const torch::NoGradGuard no_grad;
  BoundGpt2 gpt2(model_with(0, 0.4, 0), torch::kFloat64);
  // Without the second half of the block its output is linear in the dropped weights.
  for (const std::size_t param : {10U, 11U}) gpt2.param(1, param, gpt2.flat).zero_();
  const Tensor x = torch::randn({2, 6, gpt2.model.n_embd}, torch::kFloat64);
  const Tensor expected = gpt2.modules[1]->forward(x, DropoutKey{});
  constexpr int kDraws = 3000;
  Tensor sum = torch::zeros_like(x);
  Tensor squares = torch::zeros_like(x);
  for (int i = 0; i < kDraws; ++i) {
    const Tensor difference = gpt2.modules[1]->forward(x, DropoutKey{true, 1, i, 0}) - expected;
    sum += difference;
    squares += difference.square();
  }
  const Tensor error = (squares / kDraws / kDraws).sqrt();
  // 96 correlated numbers, none beyond five standard errors.
  EXPECT_TRUE(((sum / kDraws).abs() <= 5 * error + 1e-12).all().item<bool>());
  EXPECT_GT(error.min().item<double>(), 0);
}

// Attention whose mask LibTorch draws, as its fused kernels on a GPU do. The CPU's kernel for it is
// not fused; keys, seeds and what a recompute sees are the same.
class SeededAttention : public testing::Test {
 protected:
  static constexpr std::int64_t kBatch = 2;
  static constexpr std::int64_t kHeads = 3;
  static constexpr std::int64_t kLength = 5;
  static constexpr double kP = 0.3;

  static PhiloxStream stream(std::int64_t unit, std::int64_t micro_batch) {
    return dropout_stream({true, 17, 3, micro_batch}, unit, 0);
  }
  static Tensor qkv() {
    torch::manual_seed(1);
    return torch::randn({kBatch * kLength, 3 * kHeads * 4}, torch::kFloat64);
  }
  static Tensor result(const Tensor& x, const PhiloxStream& from) {
    return seeded_attention(x, kBatch, kHeads, kP, from);
  }
};

TEST_F(SeededAttention, ARecomputeHasTheBitsOfTheForward) {
  const Tensor x = qkv();
  Tensor first;
  {
    const torch::NoGradGuard no_grad;
    first = result(x, stream(4, 2));
    // Other micro-batches and units pass before a unit is computed again, and others draw.
    (void)result(x, stream(4, 3));
    (void)result(x, stream(5, 2));
    (void)torch::randn({100});
  }
  const Tensor again = result(x.clone().requires_grad_(), stream(4, 2));
  EXPECT_TRUE(torch::equal(first, again));
  EXPECT_FALSE(torch::equal(first, result(x, stream(4, 3))));
  EXPECT_FALSE(torch::equal(first, result(x, stream(5, 2))));
}

TEST_F(SeededAttention, BackwardUsesTheMaskOfItsForward) {
  const Tensor x = qkv().requires_grad_();
  const Tensor weights = torch::randn({kBatch * kLength, kHeads * 4}, torch::kFloat64);
  const Tensor loss = (result(x, stream(1, 0)) * weights).sum();
  (void)result(x, stream(1, 1));  // the next micro-batch's forward comes before this backward
  loss.backward();
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-5;
  const Tensor flat = x.detach().view(-1);
  for (std::int64_t i = 0; i < flat.numel(); i += 7) {
    const double before = flat[i].item<double>();
    flat[i] = before + kStep;
    const double above = (result(x, stream(1, 0)) * weights).sum().item<double>();
    flat[i] = before - kStep;
    const double below = (result(x, stream(1, 0)) * weights).sum().item<double>();
    flat[i] = before;
    ASSERT_NEAR(x.grad().view(-1)[i].item<double>(), (above - below) / (2 * kStep), 5e-8) << i;
  }
}

TEST_F(SeededAttention, KeepsTheMean) {
  const torch::NoGradGuard no_grad;
  const Tensor x = qkv();
  constexpr int kDraws = 4000;
  Tensor sum = torch::zeros({kBatch * kLength, kHeads * 4}, torch::kFloat64);
  Tensor squares = torch::zeros_like(sum);
  for (int draw = 0; draw < kDraws; ++draw) {
    const Tensor one = result(x, stream(1, draw));
    sum += one;
    squares += one * one;
  }
  const Tensor mean = sum / kDraws;
  const Tensor error = ((squares / kDraws - mean * mean) / kDraws).sqrt();
  // 120 elements: five standard errors hold for all of them.
  EXPECT_TRUE(
      ((mean - attention(x, kBatch, kHeads)).abs() <= 5 * error + 1e-12).all().item<bool>());
}

// The CPU has no fused kernel with dropout: there the masks are those of drop_in_place().
TEST_F(SeededAttention, IsNotTakenOnTheCpu) {
  const Tensor x = qkv();
  torch::manual_seed(5);
  const Tensor before = at::globalContext().defaultGenerator(torch::kCPU).get_state();
  const Tensor out = attention_with_dropout(x, kBatch, kHeads, kP, stream(1, 0));
  EXPECT_TRUE(torch::equal(before, at::globalContext().defaultGenerator(torch::kCPU).get_state()));
  EXPECT_FALSE(torch::equal(out, result(x, stream(1, 0))));
}

}  // namespace
}  // namespace sluice::models
