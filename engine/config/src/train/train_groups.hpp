#pragma once
// Reads the keys "groups" and "no_decay" of the section "sluice".

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Reads the parameter groups for `config.optimizer`, which is read before. Keeps those of `config`
// where the file has none.
void read_groups(Checker& checker, TrainConfig& config);

}  // namespace sluice::config
