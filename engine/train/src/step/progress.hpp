#pragma once
// Progress: how far training has come. A commit keeps it beside the optimizer states, and a resumed
// run continues from it. Every loop has one. No LibTorch.

#include <cstdint>

#include "step/loss_scaler.hpp"

namespace sluice::train {

struct Progress {
  std::int64_t step = 0;            // steps taken; skipped steps count
  std::int64_t updates = 0;         // steps that updated the weights
  std::int64_t committed_step = 0;  // the last step that survives this process; 0: none
  LossScaler loss_scaler;
};

}  // namespace sluice::train
