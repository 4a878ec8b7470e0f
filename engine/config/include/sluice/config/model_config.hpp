#pragma once
// The model file: a Hugging Face config.json with model_type gpt2, read and checked once.
// Thread-compatible: plain values; the functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/config/config_error.hpp"

namespace sluice::config {

// The activation function of the MLPs. gelu: exact, by erf. gelu_new: the tanh approximation, also
// named gelu_pytorch_tanh.
enum class Activation { gelu_new, gelu, relu };
// The name in the file: "gelu_new", "gelu", "relu".
std::string_view name_of(Activation activation);

// The model's shape. Defaults are Hugging Face's, except for dropout: an absent key means 0.
struct ModelConfig {
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  std::int64_t n_embd = 768;  // a multiple of n_head
  std::int64_t n_positions = 1024;
  std::int64_t vocab_size = 50257;
  std::optional<std::int64_t> n_inner;  // empty: 4 * n_embd
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;
  Activation activation_function = Activation::gelu_new;
  double embd_pdrop = 0;  // dropout probabilities, in [0, 1)
  double attn_pdrop = 0;
  double resid_pdrop = 0;

  std::int64_t inner_size() const { return n_inner.value_or(4 * n_embd); }
  std::int64_t head_size() const { return n_embd / n_head; }
};

// One line with the sizes, activation, normalisation and tying. Two models have equal lines exactly
// when the weights of one fit the other. Excludes initialisation and dropout.
std::string canonical_model_text(const ModelConfig& model);

// Reads and checks a file. Throws ConfigError with every mistake of the file. Throws
// InvalidArgument, with the path, when the file is unreadable.
ModelConfig load_model_config(const std::string& path);
// Checks text in memory. Messages show `shown_path` as the file. Throws ConfigError as above.
ModelConfig parse_model_config(std::string_view text, const std::string& shown_path);

}  // namespace sluice::config
