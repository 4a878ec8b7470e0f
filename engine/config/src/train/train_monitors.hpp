#pragma once
// The monitors and breakdowns of the training configuration.

#include "check/checker.hpp"
#include "sluice/config/monitor_config.hpp"

namespace sluice::config {

// Adds problems to the checker.
MonitorsConfig read_monitors(Checker& checker);

}  // namespace sluice::config
