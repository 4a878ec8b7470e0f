#pragma once
// The files that a run reads, given to train and plan. Thread-safe: a free function
// without state.

#include "sluice/train/library.hpp"

namespace sluice::cli {

// Throws InvalidArgument, with the flag and the reason, when a file cannot be read.
void require_files(const train::TrainRequest& run);

}  // namespace sluice::cli
