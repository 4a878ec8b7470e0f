#pragma once
// The settings that a run's losses follow from, as text for people. Every commit keeps them, so a
// run that is resumed with other settings is told so. Thread-safe: free functions without state.

#include <string>

#include "run/run_inputs.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/train/library.hpp"
#include "sluice/train/run_source.hpp"

namespace sluice::train {

// Not among them: model, seed, data type and threads, which a run state has and check_source()
// compares; and where bytes live, which changes no bit.
models::RunSettings settings_of(const TrainRequest& request, const plan::Plan& plan,
                                const Data& data);

// Logs one warning for each setting that differs between `saved` and `now`; a setting that either
// lacks is not compared. Throws InvalidArgument listing all differences when `strict`.
void compare_settings(const models::RunSettings& saved, const models::RunSettings& now,
                      bool strict);

// Throws InvalidArgument when both are in epochs and their steps have different numbers of
// sequences: the place in an epoch follows from the step.
void check_place_in_epochs(const models::RunSettings& saved, const models::RunSettings& now);

// Compares checksums of whole data files, known later than the settings of the run. Data whose
// samples differ were reported by compare_settings(). States of older versions have no checksums.
void compare_checksums(const models::RunSettings& saved, const models::RunSettings& now,
                       const models::RunSettings& checksums, bool strict);

}  // namespace sluice::train
