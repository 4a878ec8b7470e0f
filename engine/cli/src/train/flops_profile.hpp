#pragma once
// The flops profile of a step, as DeepSpeed's flops profiler shows it. Thread-safe: free functions
// without state.

#include <string>

#include "sluice/plan/plan.hpp"
#include "sluice/train/report.hpp"

namespace sluice::cli {

// The profile of a micro-batch, from a step's times.
std::string flops_profile(const plan::Plan& plan, const train::StepRecord& record);

}  // namespace sluice::cli
