#pragma once
// What a run goes on from: nothing, its own swap directory, or a checkpoint.

#include <optional>
#include <string>
#include <vector>

#include "sluice/config/train_config.hpp"
#include "sluice/models/run_state.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

struct RunSource {
  std::string directory;  // empty: a new run
  bool own_swap = false;  // the directory is the run's own swap directory
  std::optional<models::RunState> state;
};

// The swap directories must be there: creating them could fill the wrong disk. Throws IoError.
void check_directories(const config::TrainConfig& config, plan::Placement placement);

// LibTorch's thread count is part of the bits: a run keeps the one it began with, unless the
// configuration asks for another.
void keep_compute_threads(config::TrainConfig& config, const RunSource& source);
// The format of the states is the run's for its life: what the configuration leaves open.
void keep_state_format(config::TrainConfig& config, const RunSource& source);

// What a run's model is called in its states: the text of its file, or that it is of a loop of the
// user's own.
std::string model_text(const plan::Plan& plan);
// The units that have states.
std::vector<zero::UnitLayout> stored_units(const plan::Plan& plan);
// The committed state in `directory`, a run's swap directory or a checkpoint. Throws StorageError.
RunSource read_source(const std::string& directory);

// Looks for a committed state where the configuration would keep one: the swap directory of the
// optimizer, then the newest checkpoint. Without --resume, one that exists is an error
// (StorageError, with both ways out). With --resume and none, the run begins anew, which the log
// says.
RunSource find_source(const TrainRequest& request, const config::TrainConfig& config);

// Throws StorageError or InvalidArgument when the state in `source` is of another model, layout,
// data type or seed.
void check_source(const RunSource& source, const plan::Plan& plan, std::uint64_t seed);

}  // namespace sluice::train
