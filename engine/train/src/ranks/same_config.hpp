#pragma once
// The configurations of ranks that each read one of their own, as scripts do.
// Thread-compatible: a free function without state.

#include "sluice/config/train_config.hpp"
#include "sluice/zero/communicator.hpp"

namespace sluice::train {

// Throws InvalidArgument on all ranks, with the key and both values, where two ranks have different
// values of a key that the result of training depends on, or the calls between ranks. Paths,
// budgets and learning rates' schedules may differ: rates are compared in each step. All ranks call
// it, before any other call. Blocks.
void require_same_config(zero::Communicator& ranks, const config::TrainConfig& config);

}  // namespace sluice::train
