#pragma once
// The keys of the configuration files, with their fates: the one table that the parser follows and
// that docs/config.md shows (a test compares the two). Thread-safe: constant data.

#include <span>
#include <string_view>

namespace sluice::config {

enum class Fate {
  honoured,  // has the effect that its note says
  mapped,    // accepted with a line in TrainConfig::notes that says what it means here
  inert,     // model files only: describes something that training does not read
  refused,   // known, but only its default is accepted; anything else is "not supported yet"
};

struct KeyInfo {
  std::string_view path;          // "zero_optimization.stage"
  std::string_view alias;         // another name of the last part of `path`, or empty
  std::string_view type;          // "bool", "integer >= 1", "one of process, power, none", ...
  std::string_view default_json;  // JSON text; "required" where the key cannot be absent
  Fate fate;
  std::string_view note;
};

std::string_view name_of(Fate fate);

// Keys of the training configuration (DeepSpeed's schema and the section "sluice").
std::span<const KeyInfo> key_table();
// Keys of the model file (Hugging Face config.json, model_type gpt2).
std::span<const KeyInfo> model_key_table();

}  // namespace sluice::config
