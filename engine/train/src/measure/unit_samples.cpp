#include "measure/unit_samples.hpp"

#include "device/tensor_bytes.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

constexpr double kDeviation = 0.02;  // of initial weights

config::ModelConfig one_block(config::ModelConfig model) {
  model.n_layer = 1;
  return model;
}

}  // namespace

UnitSamples::UnitSamples(const SampleShape& shape, torch::Device device)
    : model_(one_block(shape.model)),
      layouts_(models::gpt2_units(model_, 1)),
      modules_(models::make_gpt2_modules(model_, torch_dtype(shape.dtype), device)),
      kind_(torch::TensorOptions().dtype(torch_dtype(shape.dtype)).device(device)),
      rows_(shape.micro_batch) {
  for (const zero::UnitLayout& layout : layouts_) {
    const auto count = static_cast<std::int64_t>(layout.flat_count);
    // Where they are used: one thread would draw a large model's on the host for seconds.
    weights_.push_back(torch::empty({count}, kind_).normal_(0.0, kDeviation));
    gradients_.push_back(torch::zeros({count}, kind_.dtype(torch_dtype(shape.gradient_dtype))));
  }
  for (std::size_t u = 0; u < layouts_.size(); ++u) {
    modules_[u]->bind(layouts_[u], weights_[u], lent(u, weights_));
    modules_[u]->bind_gradients(layouts_[u], gradients_[u], lent(u, gradients_));
  }
  targets_ = tokens();
}

UnitSamples::~UnitSamples() {
  for (const auto& module : modules_) module->unbind();
}

std::vector<Tensor> UnitSamples::lent(std::size_t unit, const std::vector<Tensor>& flats) const {
  std::vector<Tensor> views;
  for (const auto& from : layouts_[unit].borrowed)
    views.push_back(models::view_of(layouts_[from.unit].params[from.param], flats[from.unit]));
  return views;
}

Tensor UnitSamples::tokens() const {
  return torch::randint(model_.vocab_size, {rows_, model_.n_positions}, torch::kInt64)
      .to(kind_.device());
}

Tensor UnitSamples::hidden() const {
  return torch::randn({rows_, model_.n_positions, model_.n_embd}, kind_);
}

Tensor UnitSamples::input(std::size_t unit) const {
  return unit == 0 ? tokens() : hidden();
}

Tensor UnitSamples::output_gradient(std::size_t unit) const {
  return is_head(unit) ? torch::ones({}, kind_.dtype(torch::kFloat32)) : hidden();
}

Tensor UnitSamples::run(std::size_t unit, const Tensor& input) const {
  const models::DropoutKey key{.training = true, .seed = 1, .step = 1, .micro_batch = 0};
  return is_head(unit) ? modules_[unit]->loss(input, targets_)
                       : modules_[unit]->forward(input, key);
}

}  // namespace sluice::train
