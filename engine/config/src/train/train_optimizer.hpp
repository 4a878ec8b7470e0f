#pragma once
// The section "optimizer" of the training configuration.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Says in the schema whose parameters are moot: those of an optimizer or scheduler that is refused
// or replaced.
void set_moot_sections(const JsonDocument& document, Schema& schema);

// Adds problems to the checker.
OptimizerConfig read_optimizer(Checker& checker);

}  // namespace sluice::config
