#pragma once
// The keys of the configuration files, with their fates. The parser follows this table, and
// docs/config.md shows it; a test compares the two. Thread-safe: constant data.

#include <span>
#include <string_view>

namespace sluice::config {

// How the engine treats a key.
enum class Fate {
  honoured,  // has the effect in its note
  mapped,    // accepted, with a line in TrainConfig::notes that says its meaning here
  inert,     // model files only: training does not read it
  refused,   // known; any value but the default is "not supported yet"
};

// One row of the table.
struct KeyInfo {
  std::string_view path;          // "zero_optimization.stage"
  std::string_view alias;         // another name of the last part of `path`, or empty
  std::string_view type;          // "bool", "integer >= 1", "one of process, power, none", ...
  std::string_view default_json;  // JSON text; "required" where the key must be present
  Fate fate;
  std::string_view note;
};

// The name of a fate: "honoured", "mapped", ...
std::string_view name_of(Fate fate);

// The keys of the training configuration: DeepSpeed's schema and the section "sluice".
std::span<const KeyInfo> key_table();
// The keys of the model file (Hugging Face config.json, model_type gpt2).
std::span<const KeyInfo> model_key_table();

}  // namespace sluice::config
