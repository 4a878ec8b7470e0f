#pragma once
// An independent reference for the modules: GPT-2 (Radford et al. 2019; the arithmetic of Hugging
// Face's GPT2LMHeadModel) in plain double loops, without LibTorch. Thread-compatible: callers
// synchronise.

#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "sluice/config/model_config.hpp"

namespace sluice::models::test {

using Matrix = std::vector<std::vector<double>>;  // rows
using Weights = std::map<std::string, std::vector<double>>;

class ReferenceGpt2 {
 public:
  ReferenceGpt2(const config::ModelConfig& model, const Weights& weights)
      : model_(model), weights_(weights) {}

  // One sequence of T tokens: (T, V).
  Matrix logits(const std::vector<std::int64_t>& tokens) const {
    const std::size_t width = size(model_.n_embd);
    Matrix x(tokens.size(), std::vector<double>(width));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t c = 0; c < width; ++c) {
        x[t][c] = at("transformer.wte.weight")[size(tokens[t]) * width + c] +
                  at("transformer.wpe.weight")[t * width + c];
      }
    }
    for (std::int64_t layer = 0; layer < model_.n_layer; ++layer) {
      const std::string h = "transformer.h." + std::to_string(layer) + ".";
      add(x, linear(attention(linear(norm(x, h + "ln_1"), h + "attn.c_attn")), h + "attn.c_proj"));
      Matrix inner = linear(norm(x, h + "ln_2"), h + "mlp.c_fc");
      for (auto& row : inner) {
        for (double& value : row) value = activate(value);
      }
      add(x, linear(inner, h + "mlp.c_proj"));
    }
    x = norm(x, "transformer.ln_f");
    const auto& head = at(model_.tie_word_embeddings ? "transformer.wte.weight" : "lm_head.weight");
    Matrix out(tokens.size(), std::vector<double>(size(model_.vocab_size), 0.0));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t v = 0; v < out[t].size(); ++v) {
        for (std::size_t c = 0; c < width; ++c) out[t][v] += x[t][c] * head[v * width + c];
      }
    }
    return out;
  }

  // Mean cross-entropy over all sequences and positions.
  double loss(const std::vector<std::vector<std::int64_t>>& inputs,
              const std::vector<std::vector<std::int64_t>>& targets) const {
    double sum = 0;
    double count = 0;
    for (std::size_t b = 0; b < inputs.size(); ++b) {
      const Matrix out = logits(inputs[b]);
      for (std::size_t t = 0; t < out.size(); ++t, ++count) {
        double total = 0;
        for (const double value : out[t]) total += std::exp(value);
        sum += std::log(total) - out[t][size(targets[b][t])];
      }
    }
    return sum / count;
  }

 private:
  static std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }
  const std::vector<double>& at(const std::string& name) const { return weights_.at(name); }

  static void add(Matrix& x, const Matrix& y) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
    }
  }

  Matrix norm(const Matrix& x, const std::string& name) const {
    Matrix y = x;
    for (auto& row : y) {
      const double n = static_cast<double>(row.size());
      double mean = 0;
      double variance = 0;
      for (const double value : row) mean += value / n;
      for (const double value : row) variance += (value - mean) * (value - mean) / n;
      for (std::size_t c = 0; c < row.size(); ++c) {
        row[c] = (row[c] - mean) / std::sqrt(variance + model_.layer_norm_epsilon) *
                     at(name + ".weight")[c] +
                 at(name + ".bias")[c];
      }
    }
    return y;
  }

  // Conv1D: the weight is (in, out).
  Matrix linear(const Matrix& x, const std::string& name) const {
    const auto& weight = at(name + ".weight");
    const auto& bias = at(name + ".bias");
    Matrix y(x.size(), bias);
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t i = 0; i < x[t].size(); ++i) {
        for (std::size_t o = 0; o < bias.size(); ++o) {
          y[t][o] += x[t][i] * weight[i * bias.size() + o];
        }
      }
    }
    return y;
  }

  // qkv (T, 3 * C) -> (T, C).
  Matrix attention(const Matrix& qkv) const {
    const std::size_t width = size(model_.n_embd);
    const std::size_t depth = width / size(model_.n_head);
    Matrix out(qkv.size(), std::vector<double>(width, 0.0));
    for (std::size_t head = 0; head < size(model_.n_head); ++head) {
      for (std::size_t t = 0; t < qkv.size(); ++t) {
        std::vector<double> weights(t + 1, 0.0);
        double total = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t d = 0; d < depth; ++d) {
            weights[s] += qkv[t][head * depth + d] * qkv[s][width + head * depth + d];
          }
          weights[s] = std::exp(weights[s] / std::sqrt(static_cast<double>(depth)));
          total += weights[s];
        }
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t d = 0; d < depth; ++d) {
            out[t][head * depth + d] += weights[s] / total * qkv[s][2 * width + head * depth + d];
          }
        }
      }
    }
    return out;
  }

  double activate(double x) const {
    switch (model_.activation_function) {
      case config::Activation::relu:
        return x > 0 ? x : 0;
      case config::Activation::gelu:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case config::Activation::gelu_new:
        return 0.5 * x *
               (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    }
    return 0;
  }

  const config::ModelConfig& model_;
  const Weights& weights_;
};

}  // namespace sluice::models::test
