#pragma once
// GPT-2 as units: embedding, n_layer blocks, head. Names and shapes are those that Hugging Face's
// GPT2LMHeadModel saves (linear weights are Conv1D: (in, out)). No LibTorch. Thread-safe: values
// and free functions without state.

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

// Units in forward order: "embedding" (transformer.wte.weight, transformer.wpe.weight), "h.0" ...
// (ln_1, attn, ln_2, mlp), "head" (transformer.ln_f.*; lm_head.weight when not tied, else the
// embedding's wte borrowed).
std::vector<zero::UnitLayout> gpt2_units(const config::ModelConfig& model, int world_size);

// Fills `values` with the initial values of elements [offset_count, offset_count + values.size())
// of the unit's flat buffer. Normal with standard deviation initializer_range; c_proj weights
// scaled by 1 / sqrt(2 n_layer) (GPT-2 paper, 2.3); biases 0, layer norms 1 and 0, padding 0. Each
// element depends only on seed, parameter name and index (Philox 4x32-10 and Box-Muller), so any
// split into calls gives equal values.
void fill_initial(const config::ModelConfig& model, const zero::UnitLayout& unit,
                  std::uint64_t seed, std::uint64_t offset_count, std::span<float> values);

// Peak bytes that LibTorch holds on the device while a unit computes one micro-batch, beyond the
// unit's input, weights and flat gradient buffer. The formulas name the tensors alive at the peak;
// a test compares them with the allocator's peak.
struct UnitWorkspace {
  // Forward without gradients, including the output.
  std::uint64_t forward_bytes = 0;
  // Recompute with gradients, then backward; including the gradient of the input. Also the total of
  // a backward with saved activations, including these.
  std::uint64_t backward_bytes = 0;
  // Forward that saves its activations for backward, including the output. 0 for the head, whose
  // backward follows at once.
  std::uint64_t keeping_bytes = 0;
  // The saved activations after that forward, without input and output. 0 for the head.
  std::uint64_t kept_bytes = 0;
};
// On this processor, whose kind decides what oneDNN takes beside the tensors. `dtype` computes;
// `threads`: LibTorch's. Throws InvalidArgument below 1 or for a unit beyond the model, and when a
// product exceeds 64 bits.
UnitWorkspace unit_workspace(const config::ModelConfig& model, std::size_t unit_index,
                             std::uint64_t micro_batch, DType dtype, int threads);

// Further bytes of a backward whose 16-bit gradients are summed in fp32: the largest product that
// waits to be added. `on_gpu`: products are cut into larger pieces there.
std::uint64_t fp32_sum_bytes(const config::ModelConfig& model, std::size_t unit_index, bool on_gpu);

// The workspaces of a model's kinds of units; all blocks are equal.
struct UnitWorkspaces {
  UnitWorkspace embedding;
  UnitWorkspace block;
  UnitWorkspace head;
  std::uint64_t held_bytes = 0;  // held by LibTorch's libraries between units
  bool measured = false;         // by running a micro-batch of the two sizes below
  std::int64_t micro_batch = 0;
  std::int64_t n_positions = 0;
};
// Estimate of held_bytes on a GPU without measurement: cuBLAS's workspaces, and tables that stay.
inline constexpr std::uint64_t kGpuHeldBytes = 96U << 20U;
// Estimate for a GPU without measurement, meant to be too high: a GPU's libraries take other
// scratch memory than the CPU's. Throws as unit_workspace().
UnitWorkspaces estimate_gpu_workspaces(const config::ModelConfig& model, std::uint64_t micro_batch,
                                       std::uint64_t element_bytes);

}  // namespace sluice::models
