#pragma once
// The model file: a Hugging Face config.json with model_type gpt2, read and checked once.
// Thread-compatible: plain values; the functions are thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/config/config_error.hpp"

namespace sluice::config {

// gelu: exact, by erf. gelu_new: the tanh approximation (also named gelu_pytorch_tanh).
enum class Activation { gelu_new, gelu, relu };
std::string_view name_of(Activation activation);

// Defaults are Hugging Face's, except dropout: absent means 0.
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

// Elements of all parameters; a tied head counts once.
std::uint64_t parameter_count(const ModelConfig& model);

// One line that is equal for two models exactly when weights of the one are weights of the other:
// sizes, activation, normalisation, tying. Not in it: initialisation and dropout.
std::string canonical_model_text(const ModelConfig& model);

// Reads and checks a file. Throws ConfigError with every mistake of the file, and InvalidArgument
// that names the path when it cannot be read.
ModelConfig load_model_config(const std::string& path);
// The same for text in memory; `shown_path` stands for the file in messages.
ModelConfig parse_model_config(std::string_view text, const std::string& shown_path);

}  // namespace sluice::config
