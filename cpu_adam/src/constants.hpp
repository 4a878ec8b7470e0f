#pragma once
// Converts a configuration to the kernels' constants. Thread-safe: free functions without state.

#include <cstddef>

#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"

namespace sluice::cpu_adam {

// The update rule of the configuration.
Rule rule_of(const OptimizerConfig& config);
// The constants of a step. Throws InvalidArgument with a value that is out of range, non-finite, or
// beyond fp32.
StepConstants constants_of(const OptimizerConfig& config, const Step& step);

}  // namespace sluice::cpu_adam
