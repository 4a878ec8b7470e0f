#pragma once
// Progress: how far training has come. A commit keeps it beside the optimizer states, and a resumed
// run continues from it. Every loop has one. No LibTorch.

#include <cstdint>
#include <string>

#include "step/loss_scaler.hpp"

namespace sluice::train {

// Checkpoints that could not be written.
struct MissedCheckpoints {
  std::int64_t count = 0;
  std::string last_problem;
};

struct Progress {
  std::int64_t step = 0;     // steps taken; skipped steps count
  std::int64_t updates = 0;  // steps that updated the weights
  std::int64_t committed_step =
      0;  // the last step committed in the swap directory or a checkpoint; 0: none
  std::int64_t checkpoint_step = 0;  // of the last checkpoint written or resumed from; 0: none
  std::string line;                  // models::RunState::line
  std::int64_t order = 0;            // models::RunState::order
  LossScaler loss_scaler;
  MissedCheckpoints missed;
};

}  // namespace sluice::train
