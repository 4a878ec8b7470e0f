#pragma once
// RunSetup: everything that a run decides before it allocates anything: its configuration, its
// data, where it continues from, and its plan. Not installed.

#include <atomic>
#include <cstdint>
#include <string>

#include "measure/unit_workspaces.hpp"
#include "ranks/rank_group.hpp"
#include "run/run_inputs.hpp"
#include "saved/saved_state.hpp"
#include "sluice/offload/directory_lock.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/library.hpp"
#include "sluice/train/run_source.hpp"

namespace sluice::train {

// Constant after set_up_run(), except that `plan.choices` grows as files are opened, and
// `identity.settings` by the checksums of the data (DataCheck).
struct RunSetup {
  std::int64_t total_steps = 0;
  Data data;
  offload::HeldDirectories held;  // its own swap and checkpoint directories
  RunSource source;
  plan::Plan plan;
  RunIdentity identity;
};

// Reads and checks the files that `request` names, finds the state to continue from, and plans. All
// ranks have the same inputs, continue from the same step and make the same plan, or all throw.
// `stop`: ends a wait for a lock. `started` hears which work begins. Throws InvalidArgument,
// StorageError, IoError, DoesNotFit, RankFailure.
RunSetup set_up_run(const TrainRequest& request, RankGroup& ranks, const std::atomic<int>& stop,
                    const StartedWork& started);

}  // namespace sluice::train
