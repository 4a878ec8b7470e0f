#pragma once
// RunState: the description of a committed step: the model, the layout of its parameters in the
// shards, the progress of the run. A SwapStore holds it as metadata; resume, export and generate
// read it. No LibTorch. Thread-safe: values and free functions without state.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sluice/models/state_format.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

// Settings that determine the losses: name to text, for people.
using RunSettings = std::map<std::string, std::string>;

// State of a dynamic loss scale, which depends on the overflows so far.
struct LossScaleState {
  double scale = 1;
  std::int64_t good_steps = 0;  // since the last overflow
  int hysteresis_left = 1;      // overflows until the scale is lowered, including the last one

  friend bool operator==(const LossScaleState&, const LossScaleState&) = default;
};

struct RunState {
  // The line of states that this one belongs to: a run, every run that resumed it, and steps that
  // were abandoned by a return to an earlier state. `order` grows along the line with each step
  // taken, also after a return. Older versions recorded neither: then `line` is empty and `order`
  // is the step.
  std::string line;
  std::int64_t order = 0;
  // Nanoseconds since 1970, in older manifests at the end of a second; 0: not recorded. A
  // checkpoint has a later time than every checkpoint that was in its directory, whatever the clock
  // says.
  std::int64_t saved_at = 0;
  std::string model;                    // config::canonical_model_text
  std::vector<zero::UnitLayout> units;  // without frozen units
  std::int64_t step = 0;                // steps taken; determines the data with the seed
  std::int64_t updates = 0;             // steps that were not skipped: the optimizer's count
  std::uint64_t seed = 0;
  std::string compute_dtype;                 // "bf16", "fp16", "fp32"
  std::optional<LossScaleState> loss_scale;  // only for fp16 with a dynamic scale
  StateFormat format;
  int compute_threads = 1;  // LibTorch's threads, which determine the bits
  int world_size = 1;
  std::string version;   // version of the writing program
  RunSettings settings;  // empty when that version recorded none
};

std::string to_json(const RunState& state);
// Reads the text of to_json(). Throws StorageError naming `path` for any other text.
RunState parse_run_state(const std::string& json, const std::string& path);

}  // namespace sluice::models
