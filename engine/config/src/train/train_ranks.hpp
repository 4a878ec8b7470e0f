#pragma once
// Keys about several ranks. Thread-compatible: free functions over a checker.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Notes the keys that another one makes ineffective.
ReductionConfig read_reduction(Checker& checker);

// Adds a problem, with the reason, for each key that several ranks refuse, and notes the keys that
// the places of `zero` make ineffective.
void check_ranks(Checker& checker, const ZeroConfig& zero, int world_size);

}  // namespace sluice::config
