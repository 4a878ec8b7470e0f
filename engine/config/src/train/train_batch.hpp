#pragma once
// Reads and checks the three batch sizes. Thread-safe: a free function.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// The two or one that the file leaves out are derived. Uses config.world_size.
void read_batch(Checker& checker, TrainConfig& config);

}  // namespace sluice::config
