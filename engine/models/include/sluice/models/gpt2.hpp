#pragma once
// GPT-2 as LibTorch modules, one module per unit. A module computes and owns no weights: the engine
// binds the module's parameters to views of the gathered flat buffer before the module computes,
// and unbinds them afterwards.
//
// Shapes: B micro-batch, T sequence, C = n_embd, H = n_head, V = vocab_size.
// Confined to thread: the one that computes.

#include <torch/nn/module.h>

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
  // Embedding: x (B, T), int64 tokens. Block: x (B, T, C). Both return (B, T, C). The head throws
  // InvalidArgument.
  virtual torch::Tensor forward(const torch::Tensor& x, const DropoutKey& key);
  // Head: mean cross-entropy over all B * T targets, in fp32; x (B, T, C), targets (B, T) int64.
  // Gradients are those of `scale` times the mean. The gradient of the projection's weights is
  // added before loss() returns, the others by backward(), whose gradient must be 1. Other units
  // throw InvalidArgument.
  virtual torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& targets,
                             double scale = 1);
  // Head: (B, T, C) -> (B, T, V). Other units throw InvalidArgument.
  virtual torch::Tensor logits(const torch::Tensor& x);
  // forward() of further tokens with cached keys and values, without gradients or dropout.
  // `position`: index of the first token, equal to the number of cached positions; the cache grows
  // by T. The head throws InvalidArgument.
  virtual torch::Tensor forward_cached(const torch::Tensor& x, std::int64_t position);
  // Frees the cached keys and values.
  virtual void clear_cache();

  // The parameters in the order of the unit's layout: own parameters first, then borrowed ones.
  const std::vector<torch::Tensor>& params_in_order() const { return params_; }

  // Binds the own parameters to views of `flat` (flat_count elements, on the compute device), and
  // the borrowed ones to `borrowed`. Shapes come from the layout; nothing is copied. `flat` and
  // `borrowed` outlive the binding. Throws InvalidArgument when numbers, lengths or data types do
  // not match.
  void bind(const zero::UnitLayout& layout, const torch::Tensor& flat,
            const std::vector<torch::Tensor>& borrowed);
  // Binds every parameter's gradient to the parameter's place in `flat_gradient`, or to its view in
  // `borrowed_gradients`. Backward accumulates into these, so the caller zeroes them first, or
  // fills in earlier gradients. They have the weights' data type, or fp32: then sums are exact to
  // fp32, of what each backward computes in the weights' type. Throws InvalidArgument as bind(),
  // and for other shapes than the weights'.
  void bind_gradients(const zero::UnitLayout& layout, const torch::Tensor& flat_gradient,
                      const std::vector<torch::Tensor>& borrowed_gradients);
  // Replaces the parameters by empty tensors, and removes their gradients.
  void unbind();

 protected:
  // Registers an empty parameter with data type and device of `kind`, and returns a handle of it.
  // Call in the order of the layout, borrowed parameters last.
  torch::Tensor declare(const std::string& name, const torch::TensorOptions& kind);

 private:
  std::vector<torch::Tensor> params_;
};

// One module per unit of gpt2_units(model), in that order. `dtype`: bf16, fp16 or fp32. Bound
// buffers and inputs are on `device`. The modules share no state.
std::vector<std::shared_ptr<UnitModule>> make_gpt2_modules(const config::ModelConfig& model,
                                                           torch::Dtype dtype,
                                                           torch::Device device = torch::kCPU);

}  // namespace sluice::models
