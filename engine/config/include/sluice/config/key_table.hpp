#pragma once
// The keys of the configuration files, with their fates. The parser follows this table, and
// docs/config.md shows it; a test compares the two. Thread-safe: constant data.

#include <span>
#include <string>
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
  // The meaning of "auto" where the Hugging Face Trainer fills it in: JSON text, or "default", or
  // "open" when a flag must give the value. Empty: the Trainer does not fill this key.
  std::string_view auto_json = {};
  // Names that other programs have for this key, joined by ", ". Messages lead from them to it.
  std::string_view words = {};
  // A mapped key whose users miss something that they asked for: its line is a warning.
  bool warns = false;
};

// A flag of the command line that gives the value of a key, in the words of Hugging Face's
// TrainingArguments.
struct FlagInfo {
  std::string_view flag;         // "--learning-rate"
  std::string_view short_name;   // "--lr", or empty
  std::string_view placeholder;  // "LR"; empty: a switch, which means true
  std::string_view key;  // "optimizer.params.lr"; a number at the end is the index in a list
};

// The name of a fate: "honoured", "mapped", ...
std::string_view name_of(Fate fate);

// The flags that give values of keys.
std::span<const FlagInfo> flag_table();
// The flags that give the key's value, with their placeholders: "--adam-beta1 B, --adam-beta2 B".
// Falls back to "--set KEY=VALUE".
std::string flags_of(std::string_view key);
// True in the sections that DeepSpeed reads through typed models: "auto" stands for the default of
// any key there, and a number may be written as a string.
bool is_typed_section(std::string_view path);

// The first of `names` whose first words are `name`: "stage3_max_live" are those of
// "stage3_max_live_parameters". Empty: there is none.
std::string_view name_of_first_words(std::string_view name,
                                     std::span<const std::string_view> names);

// The keys of the training configuration: DeepSpeed's schema and the section "sluice".
std::span<const KeyInfo> key_table();
// The keys of the model file (Hugging Face config.json, model_type gpt2).
std::span<const KeyInfo> model_key_table();

}  // namespace sluice::config
