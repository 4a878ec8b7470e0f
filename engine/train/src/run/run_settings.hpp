#pragma once
// The settings that a run's losses follow from, as texts for people: kept with every commit, so
// that a run that goes on otherwise than it began is told so. Thread-safe: free functions without
// state.

#include <string>

#include "run/run_inputs.hpp"
#include "saved/run_source.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Not in it: model, seed, data type and threads, which a run state has and check_source compares;
// where things lie, which changes no bit.
models::RunSettings settings_of(const TrainRequest& request, const config::TrainConfig& config,
                                const config::ModelConfig& model, const Data& data);

// One warning for each setting that differs between what `saved` has and `now`; nothing where
// either does not have it. Throws InvalidArgument with all of them when `strict`.
void compare_settings(const models::RunSettings& saved, const models::RunSettings& now,
                      bool strict);

// The setting that has them.
inline constexpr const char* kMicroBatchesPerPass = "number of micro-batches per pass";
// Where it computes, and how: "the host", "NVIDIA H200, deterministic".
std::string device_text(const plan::Plan& plan);
// A resumed run goes on with those that it was begun with, where the configuration names none:
// bits may depend on them.
void keep_passes(config::TrainConfig& config, const RunSource& source);

}  // namespace sluice::train
