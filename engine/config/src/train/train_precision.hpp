#pragma once
// The sections "bf16" and "fp16" of the training configuration.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Adds problems to the checker. Comes after zero_optimization, whose stage changes the loss scale.
void read_precision(Checker& checker, TrainConfig& config);

}  // namespace sluice::config
