#pragma once
// Which directories belong to one rank and which to all. The swap directories of the configuration
// are of all ranks; each rank's store lies in a folder of them (offload::rank_folder). A checkpoint
// directory is shared as it is: a checkpoint there has a folder for each rank. Thread-safe: free
// functions without state.

#include <string>

#include "sluice/config/train_config.hpp"
#include "sluice/offload/swap_place.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/run_source.hpp"

namespace sluice::train {

// The directories where all optimizer states may be committed: the optimizer's, otherwise the
// parameters' (where states spill to). Empty when the configuration names none.
offload::SwapPlace swap_place(const config::TrainConfig& config, plan::Placement placement);
// The first of them.
std::string swap_directory(const config::TrainConfig& config, plan::Placement placement);

// `config` with the folders of config.rank in place of the swap directories, which must exist;
// makes the folders. With one rank, or Placement::resident, `config` as it is. Throws IoError.
config::TrainConfig with_rank_folders(config::TrainConfig config, plan::Placement placement);

// Whether `folder` is on this host and has files of a store, committed or not. Throws IoError.
bool holds_states(const std::string& folder);
// For states that ranks of another number left in the swap directory, all of which each rank reads.
// Throws StorageError, which says how to go on, where some are not on this host; IoError.
void require_all_parts(const RunSource& source);

}  // namespace sluice::train
