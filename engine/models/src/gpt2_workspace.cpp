#include <algorithm>
#include <string>

#include "logits_chunks.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/dtype.hpp"
#include "sluice/base/error.hpp"
#include "sluice/models/gpt2_layout.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::models {
namespace {

using Bytes = std::uint64_t;

// Whether oneDNN sums bf16 products in an fp32 copy of the whole result: where AVX-512 has no bf16
// products. Without AVX-512, LibTorch does not ask oneDNN.
bool has_fp32_results() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512bf16") == 0;
#else
  return false;
#endif
}

// Every term below is a tensor that gpt2.cpp and gpt2_functions.cpp hold, or a buffer that a
// LibTorch kernel takes from the allocator. A unit is a sequence of stages; its peak is the largest
// sum of the tensors alive in one stage. N = B * T rows; "r" in a comment: one tensor (N, C).
class Workspace {
 public:
  Workspace(const config::ModelConfig& model, Bytes micro_batch, Bytes element_bytes, int threads,
            bool fp32_results)
      : model_(model),
        length_(static_cast<Bytes>(model.n_positions)),
        width_(static_cast<Bytes>(model.n_embd)),
        inner_(static_cast<Bytes>(model.inner_size())),
        heads_(static_cast<Bytes>(model.n_head)),
        depth_(static_cast<Bytes>(model.head_size())),
        vocabulary_(static_cast<Bytes>(model.vocab_size)),
        element_(element_bytes),
        threads_(static_cast<Bytes>(threads)),
        fp32_results_(fp32_results),
        rows_(micro_batch * length_) {}

  UnitWorkspace embedding() const {
    const Bytes r = tensor(rows_, width_);
    const Bytes dropped = model_.embd_pdrop > 0 ? r : 0;
    // Forward: looked-up rows, dropped rows. Backward: output, masked gradient, and the gradient's
    // sum over the batch for the positions.
    return {r + dropped, r + dropped + tensor(length_, width_) + kScalars, r + dropped,
            offload::pool_bytes(rows_ * sizeof(std::int64_t))};
  }

  UnitWorkspace block() const {
    const Bytes keeping =
        std::max(attention_half(Mode::with_gradients), feed_forward_half(Mode::with_gradients));
    return {std::max(attention_half(Mode::forward_only), feed_forward_half(Mode::forward_only)),
            std::max({keeping, feed_forward_backward(), attention_backward()}), keeping,
            feed_forward_kept()};
  }

  UnitWorkspace head() const {
    const Bytes r = tensor(rows_, width_);
    // A chunk of rows has logits; a piece of the chunk has fp32 logits and their exponentials. fp32
    // logits are not copied.
    const Bytes chunk = std::clamp<Bytes>(Bytes{kLogitsChunkCount} / vocabulary_, 1, rows_);
    const Bytes step = std::clamp<Bytes>(Bytes{kLossChunkCount} / vocabulary_, 1, chunk);
    const Bytes held = r + stats() + tensor(chunk, vocabulary_) + stats() + kScalars;
    const Bytes piece = offload::pool_bytes(step * vocabulary_ * sizeof(float));
    const Bytes pieces = element_ == sizeof(float) ? piece : 2 * piece;
    const Bytes small = 4 * offload::pool_bytes(step * 2 * sizeof(std::int64_t));
    const Bytes forward =
        held + std::max(pieces + small, matmul_scratch(chunk, width_, vocabulary_));
    const Bytes products = std::max(weight_gradient_scratch(chunk, width_, vocabulary_),
                                    matmul_scratch(chunk, vocabulary_, width_));
    const Bytes norm = 2 * r + stats() + norm_scratch();  // the logits are gone by then
    return {forward, std::max({forward + r, held + r + products, norm}), 0, 0};
  }

 private:
  enum class Mode { forward_only, with_gradients };
  // Means, losses, counts: a handful of one-element tensors of 64 bytes.
  static constexpr Bytes kScalars = 512;
  static constexpr Bytes kLargestScratch = 1'114'112;  // of one thread, for any size
  static constexpr Bytes kLargestAvx512Scratch = 1'721'344;

  Bytes tensor(Bytes count, Bytes row_count) const {
    return offload::pool_bytes(checked_mul(checked_mul(count, row_count), element_));
  }
  // Mean and reciprocal deviation of each row.
  Bytes stats() const { return 2 * offload::pool_bytes(rows_ * sizeof(float)); }
  // Gradients of scale and bias; each thread first sums them in fp32.
  Bytes norm_scratch() const {
    return 2 * tensor(1, width_) + 2 * offload::pool_bytes(threads_ * width_ * sizeof(float));
  }

  Bytes fp32_result(Bytes rows, Bytes columns) const {
    return offload::pool_bytes(checked_mul(checked_mul(rows, columns), sizeof(float)) + 128);
  }
  // oneDNN's scratch for (rows, depth) x (depth, columns) in bf16. Where results are summed in fp32
  // (oneDNN 3.10 on an Ice Lake), the result; on any other processor an upper bound for oneDNN 3.10
  // with AMX and 1 to 8 threads. Each thread packs 64 columns of the second operand, short columns
  // completely, longer ones in parts with fp32 sums. AVX-512 without AMX takes less, except for
  // large sizes. fp32 uses MKL, which does not use the allocator. fp16 counts as bf16: oneDNN
  // multiplies fp16 where the processor supports it (not measured there); elsewhere LibTorch's own
  // products take no scratch and this bound is too high.
  Bytes matmul_scratch(Bytes rows, Bytes depth, Bytes columns) const {
    if (element_ != 2) return 0;
    if (fp32_results_) return fp32_result(rows, columns);
    const Bytes whole = 128 * align_up(depth, 64) + 6144;
    Bytes each = whole;
    if (rows < 256 && depth > 1024) each = std::min(whole + 51'200, kLargestScratch);
    if (rows >= 256 && (depth >= 1024 || depth % 64 != 0)) {
      each = rows < 1024 ? 501'760 : kLargestScratch;
    }
    if (rows >= 1024 && depth > 3072) each = kLargestAvx512Scratch;
    return offload::pool_bytes(threads_ * each);
  }
  // Scratch of x^T g, where x and g have so many columns: both operands are packed, the first
  // transposed.
  Bytes weight_gradient_scratch(Bytes rows, Bytes x_columns, Bytes g_columns) const {
    if (element_ != 2) return 0;
    if (fp32_results_) return fp32_result(x_columns, g_columns);
    const Bytes columns = std::max(x_columns, g_columns);
    const Bytes sums = rows >= 512 ? 81'920 : 0;
    const Bytes amx = std::min(640 * align_up(rows, 32) + 6144 + sums, kLargestScratch);
    const Bytes avx512 = rows >= 1024 ? 345'088 + 1024 * std::min<Bytes>(columns, 1024) : 0;
    return offload::pool_bytes(threads_ * std::max(amx, avx512));
  }

  // Query rows and key rows that LibTorch's flash attention processes at a time.
  Bytes flash_queries() const {
    return std::min<Bytes>(length_, length_ >= 768 ? 256 : length_ >= 192 ? 64 : 32);
  }
  Bytes flash_keys() const { return std::min<Bytes>(length_, 512); }
  // Log-sums of the rows; for each thread, scores, sums and output in fp32. In bf16 also: for each
  // thread, bf16 scores and packed keys; from 64 rows on, packed keys and values.
  Bytes flash_forward() const {
    const Bytes q = flash_queries();
    const Bytes k = flash_keys();
    const Bytes log_sums = offload::pool_bytes(rows_ * heads_ * sizeof(float));
    const Bytes fp32 = offload::pool_bytes(threads_ * (q * k + 2 * q + q * depth_) * sizeof(float));
    if (element_ != 2) return log_sums + fp32;
    const Bytes packed = length_ >= 64 ? 2 * tensor(rows_, width_) : 0;
    return log_sums + fp32 + packed + tensor(threads_ * q, k) + tensor(threads_ * k, depth_);
  }
  // For each thread, weights and their gradient in fp32. In bf16 also: bf16 copies of both, and the
  // scratch of the products.
  Bytes flash_backward() const {
    const Bytes q = flash_queries();
    const Bytes k = flash_keys();
    const Bytes fp32 = 2 * offload::pool_bytes(threads_ * q * k * sizeof(float)) +
                       offload::pool_bytes(threads_ * q * sizeof(float));
    if (element_ != 2) return fp32;
    const Bytes products = std::max(128 * k, 640 * q) + 8192;
    return fp32 + 2 * tensor(threads_ * q, k) + threads_ * offload::pool_bytes(products);
  }

  bool drops_attention() const { return model_.attn_pdrop > 0; }
  Bytes residual_copy() const { return model_.resid_pdrop > 0 ? tensor(rows_, width_) : 0; }
  // Attention weights of one sequence: (H, T, T).
  Bytes weights() const { return tensor(heads_ * length_, length_); }
  Bytes mask() const { return offload::pool_bytes(length_ * length_); }
  // A copy, made by a batched product, of one sequence's queries, keys, values or of a gradient.
  Bytes sequence() const { return tensor(length_, width_); }

  // Scratch of one attention beyond its input and output.
  Bytes attention_scratch() const {
    if (!drops_attention()) return flash_forward();
    const Bytes products = std::max(matmul_scratch(length_, depth_, length_),
                                    matmul_scratch(length_, length_, depth_));
    return 2 * weights() + mask() + 3 * sequence() + of_heads(products);
  }
  // Where results are summed in fp32, each thread has that of a head of its own.
  Bytes of_heads(Bytes products) const {
    return fp32_results_ ? std::min(threads_, heads_) * products : products;
  }

  // Peak of ln_1, attention and projection. With gradients, every intermediate stays.
  Bytes attention_half(Mode mode) const {
    const Bytes r = tensor(rows_, width_);
    const Bytes r3 = tensor(rows_, 3 * width_);
    const bool all = mode == Mode::with_gradients;
    const Bytes project_in = r + stats() + r3 + matmul_scratch(rows_, width_, 3 * width_);
    const Bytes attend = (all ? r + stats() : 0) + r3 + r + attention_scratch();
    const Bytes kept = all ? r + stats() + r3 + log_sums() : 0;
    const Bytes project_out =
        kept + 2 * r + std::max(matmul_scratch(rows_, width_, width_), residual_copy());
    return std::max({project_in, attend, project_out});
  }
  Bytes log_sums() const {
    return drops_attention() ? 0 : offload::pool_bytes(rows_ * heads_ * sizeof(float));
  }

  // Saved by the attention half for backward: the results of ln_1 and attention, and qkv.
  Bytes attention_kept() const {
    return 2 * tensor(rows_, width_) + stats() + tensor(rows_, 3 * width_) + log_sums();
  }
  // Saved inner tensors: one with relu (the result), two with gelu (input and result).
  Bytes inner_kept() const {
    const Bytes inner = tensor(rows_, inner_);
    return model_.activation_function == config::Activation::relu ? inner : 2 * inner;
  }

  // Saved by a block for backward, without input and output. x1 and ln_2's result are 2 r.
  Bytes feed_forward_kept() const {
    return attention_kept() + 2 * tensor(rows_, width_) + stats() + inner_kept();
  }

  // Peak of ln_2 and the network. x1 and ln_2's result are 2 r.
  Bytes feed_forward_half(Mode mode) const {
    const Bytes r = tensor(rows_, width_);
    const Bytes inner = tensor(rows_, inner_);
    if (mode == Mode::forward_only) {
      return std::max({2 * r + stats() + inner + matmul_scratch(rows_, width_, inner_),
                       r + inner + r + matmul_scratch(rows_, inner_, width_),
                       2 * r + residual_copy()});
    }
    const Bytes before = attention_kept() + 2 * r + stats();
    return std::max({before + inner + matmul_scratch(rows_, width_, inner_),
                     before + inner_kept() + r +
                         std::max(matmul_scratch(rows_, inner_, width_), residual_copy())});
  }

  // Peak of backward from the output's gradient to x1. The caller still holds the output.
  Bytes feed_forward_backward() const {
    const Bytes r = tensor(rows_, width_);
    const Bytes inner = tensor(rows_, inner_);
    const Bytes before = attention_kept() + 2 * r + stats() + r;  // x1, ln_2's result, output
    const Bytes bias = tensor(1, std::max(inner_, 3 * width_));
    const Bytes second = before + inner_kept() + residual_copy() +
                         std::max(std::max(weight_gradient_scratch(rows_, width_, inner_), bias),
                                  inner + matmul_scratch(rows_, width_, inner_));
    const Bytes activation = before + 3 * inner;
    const Bytes first = before + inner +
                        std::max(std::max(weight_gradient_scratch(rows_, inner_, width_), bias),
                                 r + matmul_scratch(rows_, inner_, width_));
    const Bytes norm =
        before - r + 3 * r + norm_scratch();  // incoming and outgoing gradient, and their sum
    return std::max({second, activation, first, norm}) + kScalars;
  }

  // Peak of backward from x1's gradient to x: output, x1's gradient and the input's are at most 3
  // r.
  Bytes attention_backward() const {
    const Bytes r = tensor(rows_, width_);
    const Bytes r3 = tensor(rows_, 3 * width_);
    const Bytes project_out = attention_kept() + 2 * r + residual_copy() +
                              std::max(weight_gradient_scratch(rows_, width_, width_),
                                       r + matmul_scratch(rows_, width_, width_));
    const Bytes gradients =
        3 * r + residual_copy();  // output, gradients of x1 and of the attention result
    const Bytes attend = attention_kept() + gradients + r3 + attention_backward_scratch();
    const Bytes join = attention_kept() + 2 * r + 2 * r3;
    const Bytes project_in = r + stats() + 2 * r + r3 +
                             std::max(weight_gradient_scratch(rows_, width_, 3 * width_),
                                      r + matmul_scratch(rows_, 3 * width_, width_));
    return std::max({project_out, attend, join, project_in, 5 * r + norm_scratch()}) + kScalars;
  }
  Bytes attention_backward_scratch() const {
    if (!drops_attention()) return flash_backward();
    const Bytes products = std::max(weight_gradient_scratch(length_, length_, depth_),
                                    matmul_scratch(length_, length_, length_));
    return 3 * weights() + mask() + 3 * sequence() + of_heads(products);
  }

  const config::ModelConfig& model_;
  const Bytes length_;
  const Bytes width_;
  const Bytes inner_;
  const Bytes heads_;
  const Bytes depth_;
  const Bytes vocabulary_;
  const Bytes element_;
  const Bytes threads_;
  const bool fp32_results_;
  const Bytes rows_;
};

}  // namespace

namespace {

UnitWorkspace workspace_of(const config::ModelConfig& model, std::size_t unit_index,
                           std::uint64_t micro_batch, std::uint64_t element_bytes, int threads,
                           bool fp32_results) {
  const auto last = static_cast<std::size_t>(model.n_layer) + 1;
  SLUICE_CHECK(unit_index <= last,
               "unit " + std::to_string(unit_index) + " of a model of " + std::to_string(last + 1));
  SLUICE_CHECK(micro_batch >= 1 && threads >= 1 && (element_bytes == 2 || element_bytes == 4),
               "micro-batch " + std::to_string(micro_batch) + ", " + std::to_string(threads) +
                   " threads, elements of " + std::to_string(element_bytes) + " bytes");
  const Workspace workspace(model, micro_batch, element_bytes, threads, fp32_results);
  if (unit_index == 0) return workspace.embedding();
  return unit_index == last ? workspace.head() : workspace.block();
}

}  // namespace

UnitWorkspace unit_workspace(const config::ModelConfig& model, std::size_t unit_index,
                             std::uint64_t micro_batch, DType dtype, int threads) {
  return workspace_of(model, unit_index, micro_batch, size_of(dtype), threads,
                      dtype == DType::bf16 && has_fp32_results());
}

std::uint64_t fp32_sum_bytes(const config::ModelConfig& model, std::size_t unit_index,
                             bool on_gpu) {
  const std::int64_t width = model.n_embd;
  const auto product = [&](std::int64_t rows, std::int64_t columns) {
    const std::int64_t count = sum_chunk_rows(rows, columns, on_gpu) * columns;
    return offload::pool_bytes(static_cast<Bytes>(count) * sizeof(std::uint16_t));
  };
  // The embedding's rows are summed without a product.
  if (unit_index == 0) return 0;
  if (unit_index == static_cast<std::size_t>(model.n_layer) + 1)
    return product(model.vocab_size, width);
  const std::int64_t inner = model.inner_size();
  return std::max({product(width, 3 * width), product(width, inner), product(inner, width)});
}

UnitWorkspaces estimate_gpu_workspaces(const config::ModelConfig& model, std::uint64_t micro_batch,
                                       std::uint64_t element_bytes) {
  const std::uint64_t rows =
      checked_mul(micro_batch, static_cast<std::uint64_t>(model.n_positions));
  // The CPU's tensors, plus the fused attention's fp32 sums of gradients, in blocks of 128 rows.
  const std::uint64_t sums =
      checked_mul(align_up(rows, 128), static_cast<std::uint64_t>(model.n_embd) * sizeof(float));
  config::ModelConfig fused = model;
  fused.attn_pdrop = 0;  // a fused attention with dropout needs no more than one without
  const auto of = [&](std::size_t unit) {
    UnitWorkspace workspace = workspace_of(fused, unit, micro_batch, element_bytes, /*threads=*/1,
                                           /*fp32_results=*/false);
    for (std::uint64_t* bytes : {&workspace.forward_bytes, &workspace.backward_bytes,
                                 &workspace.keeping_bytes, &workspace.kept_bytes})
      *bytes = checked_add(*bytes, *bytes / 8);
    return workspace;
  };
  const auto last = static_cast<std::size_t>(model.n_layer) + 1;
  UnitWorkspaces all{
      .embedding = of(0), .block = of(1), .head = of(last), .held_bytes = kGpuHeldBytes};
  all.block.backward_bytes = checked_add(all.block.backward_bytes, checked_mul(sums, 3));
  // Chunks of logits are larger than on the CPU. Half a chunk is in fp32 at a time, twice.
  const std::uint64_t logits = std::min(
      Bytes{kGpuLogitsChunkCount}, checked_mul(rows, static_cast<std::uint64_t>(model.vocab_size)));
  for (std::uint64_t* bytes : {&all.head.forward_bytes, &all.head.backward_bytes})
    *bytes = checked_add(*bytes, logits * (element_bytes + sizeof(float)));
  return all;
}

}  // namespace sluice::models
