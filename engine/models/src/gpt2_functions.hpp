#pragma once
// The operations of GPT-2 whose backward is our own. Two reasons: gradients of weights are added to
// what the parameter's gradient holds in place (rounded once, and without a temporary of the
// weight's size), and less is kept for the backward pass. Parameters must be leaves: their gradient
// is never returned, so torch::autograd::grad does not see it; one backward for each forward.
//
// Shapes: N = B * T rows, C = n_embd, H = n_head, D = C / H, V = vocab_size.
// On the device of their arguments. Confined to the thread that computes.

#include <torch/torch.h>

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
// weights). The logits never exist whole. With gradients they are those of `scale` times the mean,
// taken here and now: the weight's are added when this returns, x's are handed over by a backward
// that must be given 1.
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

// The same with dropout of the attention weights. Works on one sequence after the other and
// computes the weights again in the backward pass: holds (H, T, T) a few times, never (B, H, T, T).
torch::Tensor attention_with_dropout(const torch::Tensor& qkv, std::int64_t batch,
                                     std::int64_t heads, double p, const PhiloxStream& stream);

}  // namespace sluice::models
