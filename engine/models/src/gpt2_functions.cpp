#include "gpt2_functions.hpp"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/SDPBackend.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "logits_chunks.hpp"
#include "saved_stream.hpp"
#include "sluice/models/dropout.hpp"

namespace sluice::models {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The gradient of a parameter, allocated on first use when no flat buffer is bound.
Tensor& gradient_of(const Tensor& parameter) {
  Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) gradient = torch::zeros_like(parameter);
  return gradient;
}

template <typename Scalar>
void add_to_fp32(float* into, const Scalar* values, std::int64_t count) {
  at::parallel_for(0, count, at::internal::GRAIN_SIZE, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) into[i] += static_cast<float>(values[i]);
  });
}

// into += values, where `into` is contiguous, and may be fp32 beside 16-bit values. LibTorch would
// make a temporary of the values in fp32 on the CPU.
void add_to(Tensor into, const Tensor& values) {
  if (into.scalar_type() == values.scalar_type() || !into.is_cpu()) {
    into.add_(values);
    return;
  }
  TORCH_CHECK(into.is_contiguous() && into.sizes() == values.sizes());
  const Tensor from = values.contiguous();
  AT_DISPATCH_REDUCED_FLOATING_TYPES(from.scalar_type(), "add_to_fp32", [&] {
    add_to_fp32(into.mutable_data_ptr<float>(), from.const_data_ptr<scalar_t>(), from.numel());
  });
}

// into += a (R, N) @ b (N, C), where `into` (R, C) has the type of the factors or is fp32. A
// product that is added to fp32 sums exists in pieces of some rows.
void add_product(Tensor& into, const Tensor& a, const Tensor& b) {
  if (into.scalar_type() == a.scalar_type()) {
    into.addmm_(a, b);
    return;
  }
  const std::int64_t rows = into.size(0);
  const std::int64_t step = sum_chunk_rows(rows, into.size(1), !into.is_cpu());
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row);
    add_to(into.narrow(0, row, count), a.narrow(0, row, count).mm(b));
  }
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias) {
    ctx->save_for_backward({x, weight, bias});
    return torch::addmm(bias, x, weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor gradient = gradients[0].contiguous();
    if (saved[1].requires_grad()) add_product(gradient_of(saved[1]), saved[0].t(), gradient);
    if (saved[2].requires_grad()) add_to(gradient_of(saved[2]), gradient.sum(0));
    Tensor of_input;
    if (ctx->needs_input_grad(0)) of_input = gradient.mm(saved[1].t());
    return {of_input, {}, {}};
  }
};

// Adds row n of `gradient` (N, C) to row tokens[n] of `into` (V, C), of type Into. Each row's sum
// is taken in the order of N, in fp32, and rounded once. One thread sums a row, so the number of
// threads does not matter.
template <typename Scalar, typename Into>
void add_rows(Tensor& into, const Tensor& tokens, const Tensor& gradient) {
  const std::int64_t width = gradient.size(1);
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  const auto* from = gradient.const_data_ptr<Scalar>();
  auto* to = into.mutable_data_ptr<Into>();
  std::vector<std::int64_t> order(static_cast<std::size_t>(tokens.numel()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return token[a] < token[b]; });
  std::vector<std::size_t> groups;  // positions in `order` where a new token begins
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || token[order[i]] != token[order[i - 1]]) groups.push_back(i);
  }
  const auto group_count = static_cast<std::int64_t>(groups.size());
  groups.push_back(order.size());
  at::parallel_for(0, group_count, 8, [&](std::int64_t begin, std::int64_t end) {
    std::vector<at::opmath_type<Scalar>> sums(static_cast<std::size_t>(width));
    for (auto group = static_cast<std::size_t>(begin); group < static_cast<std::size_t>(end);
         ++group) {
      Into* row = to + token[order[groups[group]]] * width;
      std::fill(sums.begin(), sums.end(), at::opmath_type<Scalar>(0));
      for (std::size_t i = groups[group]; i < groups[group + 1]; ++i) {
        const Scalar* source = from + order[i] * width;
        for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += source[c];
      }
      for (std::size_t c = 0; c < sums.size(); ++c) row[c] = static_cast<Into>(row[c] + sums[c]);
    }
  });
}

class Embed : public torch::autograd::Function<Embed> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& tokens, const Tensor& wte,
                        const Tensor& wpe, std::int64_t position) {
    ctx->save_for_backward({tokens, wte, wpe});
    ctx->saved_data["position"] = position;
    const std::int64_t length = tokens.size(1);
    Tensor x = wte.index_select(0, tokens.flatten()).view({tokens.size(0), length, wte.size(1)});
    return x.add_(wpe.narrow(0, position, length));
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor gradient = gradients[0].contiguous();  // (B, T, C)
    const Tensor tokens = saved[0].flatten().contiguous();
    if (saved[1].requires_grad()) {
      Tensor& of_tokens = gradient_of(saved[1]);
      const Tensor rows = gradient.view({-1, gradient.size(2)});
      if (rows.is_cpu()) {
        AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, rows.scalar_type(), "add_rows",
                                        [&] {
                                          if (of_tokens.scalar_type() == rows.scalar_type())
                                            add_rows<scalar_t, scalar_t>(of_tokens, tokens, rows);
                                          else
                                            add_rows<scalar_t, float>(of_tokens, tokens, rows);
                                        });
      } else {
        // LibTorch sorts the tokens too: it sums in fp32, in a fixed order. It takes a temporary of
        // the weight's size.
        of_tokens.add_(at::embedding_dense_backward(rows, tokens, of_tokens.size(0),
                                                    /*padding_idx=*/-1,
                                                    /*scale_grad_by_freq=*/false));
      }
    }
    if (saved[2].requires_grad()) {
      const std::int64_t position = ctx->saved_data["position"].toInt();
      add_to(gradient_of(saved[2]).narrow(0, position, gradient.size(1)), gradient.sum(0));
    }
    return {Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::int64_t rows_of(std::int64_t most_elements, const Tensor& weight, std::int64_t rows) {
  return std::clamp<std::int64_t>(most_elements / weight.size(0), 1, rows);
}

torch::Dtype loss_dtype(const Tensor& logits) {
  return logits.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
}

// The loss of each row of `logits`. With `scale`, replaces the logits by their gradient:
// d loss / d logits = (softmax - one at the target) * scale.
Tensor losses_of(const Tensor& logits, const Tensor& targets, std::int64_t step,
                 std::optional<double> scale) {
  const std::int64_t rows = logits.size(0);
  const auto options = logits.options().dtype(loss_dtype(logits));
  Tensor losses = torch::empty({rows, 1}, options);
  const Tensor minus_one = torch::full({step, 1}, -1.0, options);
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row);
    Tensor place = logits.narrow(0, row, count);
    const Tensor target = targets.narrow(0, row, count).view({count, 1});
    Tensor part = place.to(options.dtype());
    const Tensor largest = part.amax(1, true);
    const Tensor log_sum = (part - largest).exp_().sum(1, true).log_().add_(largest);
    losses.narrow(0, row, count).copy_(log_sum - part.gather(1, target));
    if (!scale) continue;
    part.sub_(log_sum).exp_();
    part.scatter_add_(1, target, minus_one.narrow(0, 0, count));
    part.mul_(*scale);
    if (part.data_ptr() != place.data_ptr()) place.copy_(part);
  }
  return losses;
}

// Processes a chunk of rows at a time, so that the logits never exist as a whole. Forward also
// computes the gradients, because the logits are gone when backward runs.
class ProjectedCrossEntropy : public torch::autograd::Function<ProjectedCrossEntropy> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& targets, std::optional<double> scale) {
    const std::int64_t rows = x.size(0);
    const bool on_cpu = weight.is_cpu();
    const std::int64_t step =
        rows_of(on_cpu ? kLogitsChunkCount : kGpuLogitsChunkCount, weight, rows);
    const std::int64_t piece = rows_of(on_cpu ? kLossChunkCount : kGpuLossChunkCount, weight, step);
    if (scale) scale = *scale / static_cast<double>(rows);
    Tensor losses = torch::empty({rows, 1}, x.options().dtype(loss_dtype(x)));
    Tensor of_input = scale ? torch::empty_like(x) : Tensor();
    for (std::int64_t row = 0; row < rows; row += step) {
      const std::int64_t count = std::min(step, rows - row);
      const Tensor chunk = x.narrow(0, row, count);
      const Tensor logits = chunk.mm(weight.t());  // (count, V)
      losses.narrow(0, row, count)
          .copy_(losses_of(logits, targets.narrow(0, row, count), piece, scale));
      if (!scale) continue;
      if (weight.requires_grad()) add_product(gradient_of(weight), logits.t(), chunk);
      Tensor place = of_input.narrow(0, row, count);
      at::mm_out(place, logits, weight);
    }
    if (scale) ctx->save_for_backward({of_input});
    return losses.mean();
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    // Not checked on a GPU, where reading the value would wait for all issued work.
    TORCH_CHECK(!gradients[0].is_cpu() || gradients[0].item<double>() == 1.0,
                "the loss has its gradients already: give their scale to loss()");
    return {ctx->get_saved_variables()[0], {}, {}, {}};
  }
};

class DroppedAttention : public torch::autograd::Function<DroppedAttention> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& qkv, std::int64_t batch,
                        std::int64_t heads, double p, const PhiloxStream& stream) {
    ctx->save_for_backward({qkv});
    ctx->saved_data["batch"] = batch;
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["p"] = p;
    save_stream(*ctx, stream);
    const Heads all = split_heads(qkv, batch, heads);
    Tensor out = torch::empty({qkv.size(0), qkv.size(1) / 3}, qkv.options());
    const Tensor placed = out.view({batch, -1, heads, all.q.size(3)}).transpose(1, 2);
    for (std::int64_t b = 0; b < batch; ++b) {
      Tensor weights = weights_of(all, b);
      drop(weights, p, stream, b);
      placed[b].copy_(weights.bmm(all.v[b]));
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const Tensor qkv = ctx->get_saved_variables()[0];
    const std::int64_t batch = ctx->saved_data["batch"].toInt();
    const std::int64_t heads = ctx->saved_data["heads"].toInt();
    const double p = ctx->saved_data["p"].toDouble();
    const PhiloxStream stream = saved_stream(*ctx);
    const Heads all = split_heads(qkv, batch, heads);
    const Tensor of_out = gradients[0].view({batch, -1, heads, all.q.size(3)}).transpose(1, 2);
    Tensor of_qkv = torch::empty_like(qkv);
    const Heads of_all = split_heads(of_qkv, batch, heads);
    for (std::int64_t b = 0; b < batch; ++b) {
      const Tensor weights = weights_of(all, b);  // (H, T, T)
      {
        Tensor dropped = weights.clone();
        drop(dropped, p, stream, b);
        of_all.v[b].copy_(dropped.transpose(1, 2).bmm(of_out[b]));
      }
      Tensor of_weights = of_out[b].bmm(all.v[b].transpose(1, 2));
      drop(of_weights, p, stream, b);
      of_weights = at::_softmax_backward_data(of_weights, weights, -1, weights.scalar_type());
      of_weights.mul_(scale_of(all));  // masked weights are 0, and so are their gradients
      of_all.q[b].copy_(of_weights.bmm(all.k[b]));
      of_all.k[b].copy_(of_weights.transpose(1, 2).bmm(all.q[b]));
    }
    return {of_qkv, {}, {}, {}, {}};
  }

 private:
  static double scale_of(const Heads& all) {
    return 1.0 / std::sqrt(static_cast<double>(all.q.size(3)));
  }

  // softmax(q k^T / sqrt(D)) of sequence b with a causal mask: (H, T, T).
  static Tensor weights_of(const Heads& all, std::int64_t b) {
    const std::int64_t length = all.q.size(2);
    const Tensor ahead =
        torch::ones({length, length}, all.q.options().dtype(torch::kBool)).triu_(1);
    Tensor scores = all.q[b].bmm(all.k[b].transpose(1, 2)).mul_(scale_of(all));
    scores.masked_fill_(ahead, -std::numeric_limits<double>::infinity());
    return torch::softmax(scores, -1);
  }

  static void drop(Tensor& weights, double p, const PhiloxStream& stream, std::int64_t b) {
    drop_in_place(weights, p, stream, static_cast<std::uint64_t>(b * weights.numel()));
  }
};

}  // namespace

Heads split_heads(const Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  const std::int64_t width = qkv.size(1) / 3;
  const auto parts = qkv.view({batch, -1, 3 * width}).split(width, 2);
  const auto view = [&](const Tensor& part) {
    return part.view({batch, -1, heads, width / heads}).transpose(1, 2);
  };
  return {view(parts[0]), view(parts[1]), view(parts[2])};
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return Linear::apply(x, weight, bias);
}

Tensor embed(const Tensor& tokens, const Tensor& wte, const Tensor& wpe, std::int64_t position) {
  return Embed::apply(tokens, wte, wpe, position);
}

Tensor projected_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                               double scale) {
  const bool with_gradients =
      torch::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return ProjectedCrossEntropy::apply(x, weight, targets,
                                      with_gradients ? std::optional(scale) : std::nullopt);
}

namespace {

Tensor attend(const Heads& all, const Tensor& qkv, double p) {
  const Tensor out = at::scaled_dot_product_attention(all.q, all.k, all.v, {}, p, true);
  return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1) / 3});
}

}  // namespace

Tensor attention(const Tensor& qkv, std::int64_t batch, std::int64_t heads) {
  return attend(split_heads(qkv, batch, heads), qkv, 0.0);
}

Tensor seeded_attention(const Tensor& qkv, std::int64_t batch, std::int64_t heads, double p,
                        const PhiloxStream& stream) {
  (void)seeded_generator(qkv.device(), stream, 0);
  return attend(split_heads(qkv, batch, heads), qkv, p);
}

Tensor attention_with_dropout(const Tensor& qkv, std::int64_t batch, std::int64_t heads, double p,
                              const PhiloxStream& stream) {
  const bool graph_is_wanted = torch::GradMode::is_enabled();
  {
    // LibTorch chooses the kernel, and the kernel the mask; gradients are one of its criteria.
    const torch::AutoGradMode as_in_a_recompute(true);
    const Tensor x = qkv.requires_grad() ? qkv : qkv.detach().requires_grad_(true);
    const Heads all = split_heads(x, batch, heads);
    const std::int64_t kernel = at::_fused_sdp_choice(all.q, all.k, all.v, {}, p, true);
    if (kernel != static_cast<std::int64_t>(at::SDPBackend::math)) {
      const Tensor out = seeded_attention(x, batch, heads, p, stream);
      return graph_is_wanted && qkv.requires_grad() ? out : out.detach();
    }
  }
  return DroppedAttention::apply(qkv, batch, heads, p, stream);
}

}  // namespace sluice::models
