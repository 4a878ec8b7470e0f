#pragma once
// Operations of GPT-2 with a backward of their own, for two reasons. Weight gradients accumulate in
// place into the parameter's gradient, rounded once, without a temporary of the weight's size. (An
// fp32 gradient of 16-bit weights gets each backward's product rounded to 16 bits, a piece at a
// time.) Less is saved for backward. Parameters must be leaves: their gradient is never returned,
// so torch::autograd::grad does not see it. Each forward allows one backward.
//
// Shapes: N = B * T rows, C = n_embd, H = n_head, D = C / H, V = vocab_size.
// Results are on the arguments' device. Confined to thread: the one that computes.

#include <torch/types.h>

#include <cstdint>

#include "sluice/models/philox.hpp"

namespace sluice::models {

// x (N, in) @ weight (in, out) + bias (out).
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight,
                     const torch::Tensor& bias);

// tokens (B, T) -> wte[token] + wpe[position + t], (B, T, C).
torch::Tensor embed(const torch::Tensor& tokens, const torch::Tensor& wte, const torch::Tensor& wpe,
                    std::int64_t position);

// Mean cross-entropy of x (N, C) @ weight (V, C)^T against targets (N), in fp32 (fp64 for fp64
// weights). The logits never exist as a whole. Gradients, if enabled, are those of `scale` times
// the mean. The weight's gradient is added before this returns; backward, whose gradient must be 1,
// returns that of x.
torch::Tensor projected_cross_entropy(const torch::Tensor& x, const torch::Tensor& weight,
                                      const torch::Tensor& targets, double scale);

// Queries, keys and values (B, H, T, D) as views of qkv (N, 3 * C).
struct Heads {
  torch::Tensor q;
  torch::Tensor k;
  torch::Tensor v;
};
Heads split_heads(const torch::Tensor& qkv, std::int64_t batch, std::int64_t heads);

// Causal attention of qkv (N, 3 * C) over H heads, without dropout: (N, C).
torch::Tensor attention(const torch::Tensor& qkv, std::int64_t batch, std::int64_t heads);

// attention() with dropout of the attention weights, keyed by the stream. Equal calls give equal
// bits, with and without gradients.
// - Where LibTorch has a fused kernel with dropout, which no CPU has: seeded_attention().
// - Elsewhere: one sequence at a time, with masks of drop_in_place(). Backward recomputes the
//   weights: holds a few (H, T, T), never (B, H, T, T).
torch::Tensor attention_with_dropout(const torch::Tensor& qkv, std::int64_t batch,
                                     std::int64_t heads, double p, const PhiloxStream& stream);
// LibTorch's attention, whose mask comes from the device's generator as seeded_generator() leaves
// it. Backward uses the mask of its forward.
torch::Tensor seeded_attention(const torch::Tensor& qkv, std::int64_t batch, std::int64_t heads,
                               double p, const PhiloxStream& stream);

}  // namespace sluice::models
