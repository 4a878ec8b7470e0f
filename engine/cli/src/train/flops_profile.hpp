#pragma once
// The flops profile of a step, as DeepSpeed's flops profiler shows it. Thread-safe: free functions
// without state.

#include <string>

#include "sluice/plan/plan.hpp"
#include "sluice/train/report.hpp"

namespace sluice::cli {

// Multiply-accumulates of a forward over one sequence: those of matrix products, attention over the
// whole sequence. The head's include no embedding, which multiplies nothing.
struct ForwardMacs {
  double block = 0;  // one of n_layer
  double head = 0;
};
ForwardMacs forward_macs(const config::ModelConfig& model);

// The profile of a micro-batch, from a step's times.
std::string flops_profile(const plan::Plan& plan, const train::StepRecord& record);

}  // namespace sluice::cli
