#pragma once
// UnitSamples: one unit of each kind of a model (embedding, block, head) with weights and gradients
// of its own. Time and memory of units are measured with these. Not installed.

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/models/gpt2.hpp"

namespace sluice::train {

// Model, data types and batch of the samples.
struct SampleShape {
  config::ModelConfig model;
  DType dtype = DType::bf16;
  DType gradient_dtype = DType::bf16;
  std::int64_t micro_batch = 1;
};

// Confined to the thread that computes.
class UnitSamples {
 public:
  UnitSamples(const SampleShape& shape, torch::Device device);
  ~UnitSamples();
  UnitSamples(const UnitSamples&) = delete;
  UnitSamples& operator=(const UnitSamples&) = delete;

  std::size_t size() const { return modules_.size(); }
  bool is_head(std::size_t unit) const { return unit + 1 == modules_.size(); }
  // Tokens for the embedding, random activations for the others.
  torch::Tensor input(std::size_t unit) const;
  // Gradient of the unit's output: random activations, or 1 for the head's loss.
  torch::Tensor output_gradient(std::size_t unit) const;
  // The unit's output, or the head's loss; with dropout as in training.
  torch::Tensor run(std::size_t unit, const torch::Tensor& input) const;

 private:
  torch::Tensor tokens() const;
  torch::Tensor hidden() const;
  std::vector<torch::Tensor> lent(std::size_t unit, const std::vector<torch::Tensor>& flats) const;

  const config::ModelConfig model_;
  const std::vector<zero::UnitLayout> layouts_;
  const std::vector<std::shared_ptr<models::UnitModule>> modules_;
  const torch::TensorOptions kind_;
  const std::int64_t rows_;
  std::vector<torch::Tensor> weights_;
  std::vector<torch::Tensor> gradients_;
  torch::Tensor targets_;  // (B, T) int64
};

}  // namespace sluice::train
