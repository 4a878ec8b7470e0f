#pragma once
// The files that a run reads, as train and plan are given them. Thread-safe: a free function
// without state.

#include "sluice/train/library.hpp"

namespace sluice::cli {

// Throws InvalidArgument that names the flag and the reason when one of them cannot be read.
void require_files(const train::TrainRequest& run);

}  // namespace sluice::cli
