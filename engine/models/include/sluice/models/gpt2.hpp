#pragma once
// GPT-2 from LibTorch modules, one module per unit. A module computes; it owns no bytes: the engine
// binds views of the gathered flat buffer to its parameters before it computes and unbinds them
// after (bind / unbind).
//
// Shapes: B micro-batch, T sequence, C = n_embd, H = n_head, V = vocab_size.
// Confined to the thread that computes.

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/models/bound_params.hpp"
#include "sluice/models/dropout.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

class UnitModule : public torch::nn::Module {
 public:
  // x: (B, T) int64 tokens for the embedding, (B, T, C) otherwise; returns (B, T, C). Not for the
  // head.
  virtual torch::Tensor forward(const torch::Tensor& x, const DropoutKey& key);
  // The head: mean cross-entropy over all B * T targets, in fp32; x (B, T, C), targets (B, T)
  // int64. Gradients are those of `scale` times the mean. Those of the projection's weights are
  // added at once, the others by backward(), which must be given no other gradient than 1.
  virtual torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& targets,
                             double scale = 1);
  // The head: (B, T, C) -> (B, T, V).
  virtual torch::Tensor logits(const torch::Tensor& x);
  // One more token with cached keys and values (blocks and embedding; no gradients, no dropout).
  // `past` grows by T positions; `position` is the first one's index.
  virtual torch::Tensor forward_cached(const torch::Tensor& x, std::int64_t position);
  virtual void clear_cache();

  // The parameters in the order of the unit's layout: own first, then borrowed.
  const std::vector<torch::Tensor>& params_in_order() const { return params_; }

  // Points the parameters at `flat` (all of the unit's elements, on the compute device) and, for
  // borrowed ones, at the given views; shapes from the layout. No copy. `flat` must outlive the
  // binding.
  void bind(const zero::UnitLayout& layout, const torch::Tensor& flat,
            const std::vector<torch::Tensor>& borrowed);
  // Points every parameter's gradient at the same place of `flat_gradient`, so that backward
  // accumulates into it (the caller zeroes it or fills it with what was accumulated before).
  void bind_gradients(const zero::UnitLayout& layout, const torch::Tensor& flat_gradient,
                      const std::vector<torch::Tensor>& borrowed_gradients);
  // Back to empty tensors without gradients.
  void unbind();

 protected:
  // Registers an empty parameter of that data type and device and returns a handle of it; call in
  // the order of the layout, borrowed last.
  torch::Tensor declare(const std::string& name, const torch::TensorOptions& kind);

 private:
  std::vector<torch::Tensor> params_;
};

// One module per unit of gpt2_units(model), in the same order. `dtype`: bf16, fp16 or fp32. What is
// bound to them and given to them is on `device`.
std::vector<std::shared_ptr<UnitModule>> make_gpt2_modules(const config::ModelConfig& model,
                                                           torch::Dtype dtype,
                                                           torch::Device device = torch::kCPU);

}  // namespace sluice::models
