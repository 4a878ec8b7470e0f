#pragma once
// The saved state of a run: what a commit and a checkpoint keep beside the optimizer states, and
// how a resumed run takes it over. Every loop uses these functions. Thread-compatible: free
// functions without state.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/models/run_state.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/train/run_source.hpp"
#include "sluice/zero/communicator.hpp"
#include "step/progress.hpp"

namespace sluice::train {

// The parts of a saved state that neither the plan nor the progress has.
struct RunIdentity {
  std::uint64_t seed = 0;        // 0 in a loop of the user's own, which draws its own data
  models::RunSettings settings;  // settings that the losses follow from; may be empty
};

// The state of `plan` after `progress.step` steps.
models::RunState make_run_state(const plan::Plan& plan, const Progress& progress,
                                const RunIdentity& identity);

// Sets `progress` to the begin of a new line, which all ranks share. All ranks call it.
void begin_progress(Progress& progress, zero::Communicator& ranks);
// Sets `progress`, including committed_step, to that of `source.state`, which must be set: the run
// belongs to its line from here on. Logs where training continues. All ranks call it.
void resume_progress(Progress& progress, const RunSource& source, zero::Communicator& ranks);

}  // namespace sluice::train
