#pragma once
// Finds and locks the state that a run continues from. Functions with a communicator are called by
// all its ranks. Rank 0 looks and decides, and locks what is of all ranks; the others hear it.
// Thread-safe: free functions without state.

#include <string>

#include "sluice/config/train_config.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/run_source.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

// Locks the directories where the configuration would keep a committed state, the optimizer's swap
// directory and the checkpoint directory, then looks for one: the newest state of the line that the
// swap directory holds, or else of the line whose checkpoint was saved last. So what is read stays
// as it is until the run that reads it changes it. Creates the checkpoint directory when it is
// absent, and removes drafts in it. Each of several ranks also makes and locks its folder of the
// swap directory (`config` names the directories of all, with_rank_folders() comes after), and ends
// there what a killed run left of a commit: its part is then of the step that all ranks committed.
// All ranks must see one checkpoint directory: one that does not throws InvalidArgument.
// Resume::no and a state that exists: throws StorageError with both ways out. Resume::yes and no
// state: logs that the run starts over. Throws StorageError naming the process that holds a lock
// longer than `wait`; when one rank throws, all do.
RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, zero::Communicator& ranks,
                      const offload::LockWait& wait = {});
// With one rank.
RunSource find_source(const config::TrainConfig& config, plan::Placement placement, Resume resume,
                      offload::HeldDirectories& held, const offload::LockWait& wait = {});
// The committed state in `directory`, a run's swap directory or a checkpoint, or else its newest
// checkpoint (models::find_run). Throws StorageError.
RunSource read_source(const std::string& directory, zero::Communicator& ranks);

}  // namespace sluice::train
