#pragma once
// A whole GPT-2 for tests: modules bound to flat buffers of random numbers. Confined to thread: the
// one that computes.

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "sluice/models/gpt2.hpp"
#include "sluice/models/gpt2_layout.hpp"

namespace sluice::models::test {

inline config::ModelConfig tiny_model() {
  config::ModelConfig model;
  model.n_layer = 2;
  model.n_head = 2;
  model.n_embd = 8;
  model.n_positions = 7;
  model.vocab_size = 13;
  return model;
}

struct BoundGpt2 {
  BoundGpt2(const config::ModelConfig& config, torch::Dtype dtype, std::int64_t seed = 1,
            torch::Device device = torch::kCPU)
      : model(config),
        units(gpt2_units(config, 1)),
        modules(make_gpt2_modules(config, dtype, device)) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    for (const zero::UnitLayout& unit : units) {
      // Far from zero, so that every part of the model matters.
      const auto count = static_cast<std::int64_t>(unit.flat_count);
      flat.push_back((0.3 * torch::randn({count}, torch::kFloat64)).to(dtype).to(device));
      gradient.push_back(torch::zeros_like(flat.back()));
    }
    for (std::size_t u = 0; u < units.size(); ++u)
      modules[u]->bind(units[u], flat[u], lent(u, flat));
  }

  void bind_gradients() {
    for (std::size_t u = 0; u < units.size(); ++u) {
      modules[u]->bind_gradients(units[u], gradient[u], lent(u, gradient));
    }
  }

  // The parameters that unit `u` borrows, as views of their owners' buffers.
  std::vector<torch::Tensor> lent(std::size_t u, const std::vector<torch::Tensor>& buffers) const {
    std::vector<torch::Tensor> views;
    for (const auto& borrowed : units[u].borrowed) {
      views.push_back(param(borrowed.unit, borrowed.param, buffers));
    }
    return views;
  }

  torch::Tensor param(std::size_t u, std::size_t index,
                      const std::vector<torch::Tensor>& buffers) const {
    return view_of(units[u].params[index], buffers[u]);
  }

  // Activations before the head, (B, T, C).
  torch::Tensor hidden(const torch::Tensor& tokens, const DropoutKey& key = {}) {
    torch::Tensor x = tokens;
    for (std::size_t u = 0; u + 1 < modules.size(); ++u) x = modules[u]->forward(x, key);
    return x;
  }
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets,
                     const DropoutKey& key = {}) {
    return modules.back()->loss(hidden(tokens, key), targets);
  }

  config::ModelConfig model;
  std::vector<zero::UnitLayout> units;
  std::vector<std::shared_ptr<UnitModule>> modules;
  std::vector<torch::Tensor> flat;
  std::vector<torch::Tensor> gradient;
};

inline torch::Tensor random_tokens(const config::ModelConfig& model, std::int64_t batch,
                                   std::int64_t length, std::int64_t seed = 5) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::randint(model.vocab_size, {batch, length}, torch::kInt64);
}

}  // namespace sluice::models::test
