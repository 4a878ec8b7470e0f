#include "sluice/models/gpt2.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bound_gpt2.hpp"
#include "reference_gpt2.hpp"
#include "sluice/base/error.hpp"

namespace sluice::models {
namespace {

using test::BoundGpt2;
using test::random_tokens;
using test::tiny_model;
using torch::Tensor;

test::Weights weights_of(const BoundGpt2& gpt2) {
  test::Weights weights;
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    for (std::size_t i = 0; i < gpt2.units[u].params.size(); ++i) {
      const Tensor values = gpt2.param(u, i, gpt2.flat).contiguous();
      const auto* data = values.const_data_ptr<double>();
      weights[gpt2.units[u].params[i].name].assign(data, data + values.numel());
    }
  }
  return weights;
}

std::vector<std::vector<std::int64_t>> rows_of(const Tensor& tokens) {
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t b = 0; b < tokens.size(0); ++b) {
    const auto* data = tokens[b].const_data_ptr<std::int64_t>();
    rows.emplace_back(data, data + tokens.size(1));
  }
  return rows;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return torch::equal(a, b);
}

struct Variant {
  const char* name;
  bool tied;
  config::Activation activation;
  std::int64_t inner;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

class Gpt2Variant : public testing::TestWithParam<Variant> {
 protected:
  static config::ModelConfig model() {
    config::ModelConfig model = tiny_model();
    model.tie_word_embeddings = GetParam().tied;
    model.activation_function = GetParam().activation;
    if (GetParam().inner != 0) model.n_inner = GetParam().inner;
    return model;
  }
};

TEST_P(Gpt2Variant, LogitsAndLossEqualThePlainReference) {
  const torch::NoGradGuard no_grad;
  BoundGpt2 gpt2(model(), torch::kFloat64);
  const Tensor tokens = random_tokens(gpt2.model, 3, 7);
  const Tensor targets = random_tokens(gpt2.model, 3, 7, 6);
  const test::Weights weights = weights_of(gpt2);
  const test::ReferenceGpt2 reference(gpt2.model, weights);

  const Tensor logits = gpt2.modules.back()->logits(gpt2.hidden(tokens));
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 7, gpt2.model.vocab_size}));
  for (std::int64_t b = 0; b < 3; ++b) {
    const test::Matrix expected = reference.logits(rows_of(tokens)[static_cast<std::size_t>(b)]);
    for (std::int64_t t = 0; t < 7; ++t) {
      for (std::int64_t v = 0; v < gpt2.model.vocab_size; ++v) {
        ASSERT_NEAR(logits[b][t][v].item<double>(),
                    expected[static_cast<std::size_t>(t)][static_cast<std::size_t>(v)], 1e-10);
      }
    }
  }
  EXPECT_NEAR(gpt2.loss(tokens, targets).item<double>(),
              reference.loss(rows_of(tokens), rows_of(targets)), 1e-10);
}

TEST_P(Gpt2Variant, GradientsEqualCentralDifferencesOfTheReference) {
  BoundGpt2 gpt2(model(), torch::kFloat64);
  gpt2.bind_gradients();
  const Tensor tokens = random_tokens(gpt2.model, 2, 5);
  const Tensor targets = random_tokens(gpt2.model, 2, 5, 6);
  gpt2.loss(tokens, targets).backward();

  test::Weights weights = weights_of(gpt2);
  const test::ReferenceGpt2 reference(gpt2.model, weights);
  // Error of the difference: h^2 times a third derivative (about 10), 1e-16 / h: 1e-9 and 1e-11.
  constexpr double kStep = 1e-5;
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    for (std::size_t i = 0; i < gpt2.units[u].params.size(); ++i) {
      const zero::ParamLayout& param = gpt2.units[u].params[i];
      const Tensor gradient = gpt2.param(u, i, gpt2.gradient).flatten();
      for (std::uint64_t element = 0; element < param.count; element += 1 + param.count / 7) {
        double& weight = weights.at(param.name)[element];
        const double before = weight;
        weight = before + kStep;
        const double above = reference.loss(rows_of(tokens), rows_of(targets));
        weight = before - kStep;
        const double below = reference.loss(rows_of(tokens), rows_of(targets));
        weight = before;
        ASSERT_NEAR(gradient[static_cast<std::int64_t>(element)].item<double>(),
                    (above - below) / (2 * kStep), 2e-8)
            << param.name << " element " << element;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gpt2Variant,
                         testing::Values(Variant{"tied", true, config::Activation::gelu_new, 0},
                                         Variant{"untied", false, config::Activation::gelu_new, 0},
                                         Variant{"gelu by erf", true, config::Activation::gelu, 0},
                                         Variant{"relu, narrow", false, config::Activation::relu,
                                                 12}));

TEST(Gpt2, ALayerNormEpsilonOfTheModelIsUsed) {
  const torch::NoGradGuard no_grad;
  config::ModelConfig model = tiny_model();
  model.layer_norm_epsilon = 0.5;
  BoundGpt2 gpt2(model, torch::kFloat64);
  const Tensor tokens = random_tokens(model, 1, 6);
  const test::Weights weights = weights_of(gpt2);
  EXPECT_NEAR(gpt2.loss(tokens, tokens).item<double>(),
              test::ReferenceGpt2(gpt2.model, weights).loss(rows_of(tokens), rows_of(tokens)),
              1e-10);
}

TEST(Gpt2, ALossInChunksEqualsTheLossOfTheWholeVocabulary) {
  config::ModelConfig model = tiny_model();
  model.vocab_size = 50257;  // one chunk of logits holds 166 rows, one in fp32 20
  model.n_positions = 64;
  for (const torch::Dtype dtype : {torch::kFloat32, torch::kBFloat16}) {
    BoundGpt2 gpt2(model, dtype);
    gpt2.bind_gradients();
    const Tensor x = torch::randn({6, 61, model.n_embd}).to(dtype).requires_grad_();
    const Tensor targets = random_tokens(model, 6, 61, 6);
    const Tensor loss = gpt2.modules.back()->loss(x, targets, 0.5);
    loss.backward();
    EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
    EXPECT_THROW(gpt2.modules.back()->loss(x, targets).backward(torch::full({}, 0.5)), c10::Error);
    x.mutable_grad().reset();
    gpt2.gradient[0].zero_();
    gpt2.modules.back()->loss(x, targets, 0.5).backward();

    const Tensor weight = gpt2.param(0, 0, gpt2.flat).detach().clone().requires_grad_();
    const Tensor leaf = x.detach().clone().requires_grad_();
    const Tensor normed = torch::layer_norm(leaf, {model.n_embd}, gpt2.param(3, 0, gpt2.flat),
                                            gpt2.param(3, 1, gpt2.flat), model.layer_norm_epsilon);
    const Tensor whole = torch::nn::functional::cross_entropy(
        normed.view({366, -1}).mm(weight.t()).to(torch::kFloat32), targets.flatten());
    whole.backward(torch::full({}, 0.5));
    // fp32 sums of 50257 terms in another order; bf16 (2^-9) rounds a gradient once, the weight's
    // once for each of three chunks.
    const double tolerance = dtype == torch::kFloat32 ? 1e-5 : 0x1p-7;
    EXPECT_NEAR(loss.item<double>(), whole.item<double>(), 1e-5);
    EXPECT_TRUE(torch::allclose(x.grad(), leaf.grad(), tolerance, 1e-4 * tolerance));
    EXPECT_TRUE(torch::allclose(gpt2.param(0, 0, gpt2.gradient), weight.grad(), tolerance,
                                1e-2 * tolerance));
  }
}

TEST(Gpt2, GradientsLandInTheFlatBufferAndTheSecondBackwardAdds) {
  BoundGpt2 gpt2(tiny_model(), torch::kFloat64);
  gpt2.bind_gradients();
  const Tensor tokens = random_tokens(gpt2.model, 2, 5);
  std::vector<const void*> places;
  for (const Tensor& gradient : gpt2.gradient) places.push_back(gradient.data_ptr());
  gpt2.loss(tokens, tokens).backward();
  std::vector<Tensor> once;
  for (const Tensor& gradient : gpt2.gradient) once.push_back(gradient.clone());
  gpt2.loss(tokens, tokens).backward();
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    EXPECT_EQ(gpt2.gradient[u].data_ptr(), places[u]);
    EXPECT_GT(once[u].abs().max().item<double>(), 0) << gpt2.units[u].name;
    EXPECT_TRUE(torch::allclose(gpt2.gradient[u], 2 * once[u], 1e-12, 1e-14)) << gpt2.units[u].name;
    for (std::size_t i = 0; i < gpt2.units[u].params.size(); ++i) {
      EXPECT_EQ(gpt2.modules[u]->params_in_order()[i].grad().data_ptr(),
                gpt2.param(u, i, gpt2.gradient).data_ptr());
    }
  }
}

TEST(Gpt2, PaddingOfTheFlatGradientStaysZero) {
  BoundGpt2 gpt2(tiny_model(), torch::kFloat32);
  gpt2.bind_gradients();
  const Tensor tokens = random_tokens(gpt2.model, 2, 5);
  gpt2.loss(tokens, tokens).backward();
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    Tensor padding = gpt2.gradient[u].clone();
    for (const auto& param : gpt2.units[u].params) {
      padding
          .narrow(0, static_cast<std::int64_t>(param.offset_count),
                  static_cast<std::int64_t>(param.count))
          .zero_();
    }
    EXPECT_EQ(padding.abs().max().item<double>(), 0) << gpt2.units[u].name;
  }
}

TEST(Gpt2, TheHeadsShareOfATiedGradientLandsInTheGivenView) {
  BoundGpt2 gpt2(tiny_model(), torch::kFloat64);
  const std::size_t head = gpt2.units.size() - 1;
  const Tensor elsewhere =
      torch::zeros({gpt2.model.vocab_size, gpt2.model.n_embd}, torch::kFloat64);
  gpt2.modules[head]->bind_gradients(gpt2.units[head], gpt2.gradient[head], {elsewhere});
  const Tensor x = torch::randn({2, 5, gpt2.model.n_embd}, torch::kFloat64);
  gpt2.modules[head]->loss(x, random_tokens(gpt2.model, 2, 5)).backward();
  EXPECT_GT(elsewhere.abs().max().item<double>(), 0);
  EXPECT_EQ(gpt2.gradient[0].abs().max().item<double>(), 0);
}

TEST(Gpt2, BindingSharesMemoryAndUnbindingLeavesNone) {
  BoundGpt2 gpt2(tiny_model(), torch::kBFloat16);
  gpt2.bind_gradients();
  for (std::size_t u = 0; u < gpt2.units.size(); ++u) {
    const auto& params = gpt2.modules[u]->params_in_order();
    ASSERT_EQ(params.size(), gpt2.units[u].params.size() + gpt2.units[u].borrowed.size());
    for (std::size_t i = 0; i < gpt2.units[u].params.size(); ++i) {
      EXPECT_EQ(params[i].data_ptr(), gpt2.param(u, i, gpt2.flat).data_ptr());
      EXPECT_EQ(params[i].sizes(), gpt2.units[u].params[i].shape);
    }
    gpt2.modules[u]->unbind();
    for (const Tensor& param : params) {
      EXPECT_EQ(param.numel(), 0);
      EXPECT_FALSE(param.grad().defined());
      EXPECT_TRUE(param.requires_grad());
    }
  }
  EXPECT_EQ(gpt2.flat[1].use_count(), 1U);
}

TEST(Gpt2, BindingsThatDoNotFitAreRefused) {
  BoundGpt2 gpt2(tiny_model(), torch::kFloat32);
  UnitModule& block = *gpt2.modules[1];
  UnitModule& head = *gpt2.modules.back();
  EXPECT_THROW(block.bind(gpt2.units[1], gpt2.flat[1].narrow(0, 0, 64), {}), InvalidArgument);
  EXPECT_THROW(block.bind(gpt2.units[1], gpt2.flat[1].to(torch::kBFloat16), {}), InvalidArgument);
  EXPECT_THROW(block.bind(gpt2.units[0], gpt2.flat[0], {}), InvalidArgument);
  EXPECT_THROW(head.bind(gpt2.units.back(), gpt2.flat.back(), {}), InvalidArgument);
  EXPECT_THROW(block.bind_gradients(gpt2.units[1], gpt2.gradient[1].to(torch::kBFloat16), {}),
               InvalidArgument);
  block.unbind();
  EXPECT_THROW(block.bind_gradients(gpt2.units[1], gpt2.gradient[1], {}), InvalidArgument);
}

TEST(Gpt2, CallsThatAUnitDoesNotHaveAreRefused) {
  BoundGpt2 gpt2(tiny_model(), torch::kFloat32);
  const Tensor x = torch::zeros({1, 2, gpt2.model.n_embd});
  EXPECT_THROW(gpt2.modules.back()->forward(x, {}), InvalidArgument);
  EXPECT_THROW(gpt2.modules.back()->forward_cached(x, 0), InvalidArgument);
  EXPECT_THROW(gpt2.modules[1]->loss(x, x), InvalidArgument);
  EXPECT_THROW(gpt2.modules[0]->logits(x), InvalidArgument);
  EXPECT_THROW(gpt2.modules[0]->forward(torch::zeros({1, 8}, torch::kInt64), {}), InvalidArgument);
}

// Sizes at which the matrix kernels take their blocked paths.
config::ModelConfig medium_model(double p) {
  config::ModelConfig model;
  model.n_layer = 2;
  model.n_head = 4;
  model.n_embd = 128;
  model.n_positions = 64;
  model.vocab_size = 300;
  model.embd_pdrop = p;
  model.attn_pdrop = p;
  model.resid_pdrop = p;
  return model;
}

struct Numerics {
  torch::Dtype dtype;
  double p;
};
class Gpt2Bits : public testing::TestWithParam<Numerics> {};

TEST_P(Gpt2Bits, TheSameUnitTwiceGivesTheSameBits) {
  std::vector<Tensor> losses;
  std::vector<std::vector<Tensor>> gradients;
  for (int time = 0; time < 2; ++time) {
    // Allocates memory between the two runs, so that buffers get other addresses.
    const Tensor filler = torch::ones({1000 * (time + 1) + 17});
    BoundGpt2 gpt2(medium_model(GetParam().p), GetParam().dtype);
    gpt2.bind_gradients();
    const Tensor tokens = random_tokens(gpt2.model, 2, 64);
    const DropoutKey key{true, 3, 5, 1};
    const Tensor loss = gpt2.loss(tokens, tokens.roll(-1, 1), key);
    loss.backward();
    losses.push_back(loss.detach());
    gradients.push_back(gpt2.gradient);
  }
  EXPECT_TRUE(same_bits(losses[0], losses[1]));
  for (std::size_t u = 0; u < gradients[0].size(); ++u) {
    EXPECT_TRUE(same_bits(gradients[0][u], gradients[1][u])) << "unit " << u;
  }
}

TEST_P(Gpt2Bits, ForwardWithoutGradientsGivesTheBitsOfTheRecompute) {
  BoundGpt2 gpt2(medium_model(GetParam().p), GetParam().dtype);
  const Tensor tokens = random_tokens(gpt2.model, 2, 64);
  const DropoutKey key{true, 3, 5, 1};
  Tensor x = tokens;
  for (std::size_t u = 0; u + 1 < gpt2.modules.size(); ++u) {
    Tensor without;
    {
      const torch::NoGradGuard no_grad;
      without = gpt2.modules[u]->forward(x, key);
      EXPECT_FALSE(without.requires_grad());
    }
    if (x.is_floating_point()) x.requires_grad_();
    const Tensor with = gpt2.modules[u]->forward(x, key);
    EXPECT_TRUE(with.requires_grad());
    EXPECT_TRUE(same_bits(without, with)) << gpt2.units[u].name;
    x = without;
  }
  Tensor without;
  {
    const torch::NoGradGuard no_grad;
    without = gpt2.modules.back()->loss(x, tokens);
  }
  x.requires_grad_();
  EXPECT_TRUE(same_bits(without, gpt2.modules.back()->loss(x, tokens)));
}

INSTANTIATE_TEST_SUITE_P(Types, Gpt2Bits,
                         testing::Values(Numerics{torch::kBFloat16, 0.0},
                                         Numerics{torch::kBFloat16, 0.1},
                                         Numerics{torch::kFloat32, 0.0},
                                         Numerics{torch::kFloat32, 0.1}));

TEST(Gpt2, BackwardUnitByUnitGivesTheBitsOfTheWholeGraph) {
  const config::ModelConfig model = medium_model(0.1);
  BoundGpt2 whole(model, torch::kBFloat16);
  BoundGpt2 parts(model, torch::kBFloat16);
  whole.bind_gradients();
  const Tensor tokens = random_tokens(model, 2, 64);
  const DropoutKey key{true, 3, 5, 1};
  whole.loss(tokens, tokens, key).backward();

  std::vector<Tensor> inputs{tokens};
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t u = 0; u + 1 < parts.modules.size(); ++u) {
      inputs.push_back(parts.modules[u]->forward(inputs.back(), key));
      parts.modules[u]->unbind();
    }
  }
  Tensor of_output;
  for (std::size_t u = parts.modules.size(); u-- > 0;) {
    UnitModule& module = *parts.modules[u];
    module.bind(parts.units[u], parts.flat[u], parts.lent(u, parts.flat));
    module.bind_gradients(parts.units[u], parts.gradient[u], parts.lent(u, parts.gradient));
    if (u > 0) inputs[u].requires_grad_();
    if (u + 1 == parts.modules.size()) {
      module.loss(inputs[u], tokens).backward();
    } else {
      module.forward(inputs[u], key).backward(of_output);
    }
    of_output = inputs[u].grad();
    module.unbind();
  }
  for (std::size_t u = 0; u < parts.units.size(); ++u) {
    EXPECT_TRUE(same_bits(parts.gradient[u], whole.gradient[u])) << parts.units[u].name;
  }
}

TEST(Gpt2, CachedGenerationEqualsTheFullForward) {
  const torch::NoGradGuard no_grad;
  BoundGpt2 gpt2(tiny_model(), torch::kFloat64);
  const Tensor tokens = random_tokens(gpt2.model, 2, 7);
  const Tensor full = gpt2.modules.back()->logits(gpt2.hidden(tokens));
  for (int round = 0; round < 2; ++round) {
    std::int64_t position = 0;
    for (const std::int64_t length : {3, 1, 2, 1}) {
      Tensor x = tokens.narrow(1, position, length);
      for (std::size_t u = 0; u + 1 < gpt2.modules.size(); ++u) {
        x = gpt2.modules[u]->forward_cached(x, position);
      }
      const Tensor logits = gpt2.modules.back()->logits(x);
      EXPECT_TRUE(torch::allclose(logits, full.narrow(1, position, length), 1e-10, 1e-10))
          << "from position " << position;
      position += length;
    }
    EXPECT_THROW(gpt2.modules[0]->forward_cached(tokens.narrow(1, 0, 1), 7), InvalidArgument);
    EXPECT_THROW(gpt2.modules[1]->forward_cached(torch::zeros({2, 1, 8}, torch::kFloat64), 0),
                 InvalidArgument);
    for (auto& module : gpt2.modules) module->clear_cache();
  }
}

}  // namespace
}  // namespace sluice::models
