#pragma once
// From a configuration to what the kernels take. Thread-safe: free functions without state.

#include "kernels.hpp"
#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

Rule rule_of(const OptimizerConfig& config);
// Throws InvalidArgument with the value that is out of range, not finite, or beyond fp32.
StepConstants constants_of(const OptimizerConfig& config, const Step& step);

}  // namespace sluice::cpu_adam
