// Gradients of a 16-bit GPT-2 that add up in fp32.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "bound_gpt2.hpp"

namespace sluice::models {
namespace {

using test::BoundGpt2;
using test::random_tokens;
using test::tiny_model;
using torch::Tensor;

// Each backward's gradient in 16 bits, added in fp32. The head's product is added in two pieces.
TEST(Gpt2, GradientsOf16BitWeightsAddUpInFp32) {
  config::ModelConfig model = tiny_model();
  model.vocab_size = 50257;
  model.n_embd = 32;
  model.tie_word_embeddings = false;
  for (const torch::Dtype dtype : {torch::kBFloat16, torch::kHalf}) {
    BoundGpt2 summed(model, dtype);
    for (Tensor& gradient : summed.gradient) gradient = gradient.to(torch::kFloat32);
    summed.bind_gradients();
    BoundGpt2 single(model, dtype);
    single.bind_gradients();
    std::vector<Tensor> expected;
    for (const Tensor& gradient : single.gradient)
      expected.push_back(torch::zeros_like(gradient, torch::kFloat32));
    for (int batch = 0; batch < 3; ++batch) {
      const Tensor tokens = random_tokens(model, 2, 7, batch);
      summed.loss(tokens, tokens).backward();
      for (Tensor& gradient : single.gradient) gradient.zero_();
      single.loss(tokens, tokens).backward();
      for (std::size_t u = 0; u < expected.size(); ++u) expected[u].add_(single.gradient[u]);
    }
    for (std::size_t u = 0; u < expected.size(); ++u) {
      for (std::size_t i = 0; i < summed.units[u].params.size(); ++i) {
        const std::string& name = summed.units[u].params[i].name;
        const Tensor sum = summed.param(u, i, summed.gradient);
        const Tensor wanted = summed.param(u, i, expected);
        EXPECT_GT(sum.abs().max().item<double>(), 0) << name;
        // The embedding's rows are added without the rounding to 16 bits. A product in pieces may
        // be summed in another order.
        const bool is_exact = name != "transformer.wte.weight" && name != "lm_head.weight";
        const double tolerance = dtype == torch::kHalf ? 0x1p-9 : 0x1p-6;
        EXPECT_TRUE(is_exact ? torch::equal(sum, wanted)
                             : torch::allclose(sum, wanted, tolerance, 1e-4 * tolerance))
            << name << ' ' << (sum - wanted).abs().max();
      }
    }
  }
}

}  // namespace
}  // namespace sluice::models
