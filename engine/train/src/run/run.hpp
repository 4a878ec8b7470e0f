#pragma once
// Run: one call of `sluice train`, from the files it is given to the report.

#include <atomic>

#include "sluice/train/library.hpp"

namespace sluice::train {

// As TrainLibrary::train.
RunReport run_training(const TrainRequest& request, TrainObserver& observer,
                       const std::atomic<int>& stop);
// As TrainLibrary::generate.
void run_generation(const GenerateRequest& request, GenerateObserver& observer,
                    const std::atomic<int>& stop);

}  // namespace sluice::train
