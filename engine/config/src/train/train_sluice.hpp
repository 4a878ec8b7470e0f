#pragma once
// The section "sluice". Not installed.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Reads and checks it, but for what depends on other sections.
void read_sluice(Checker& checker, SluiceConfig& sluice);

}  // namespace sluice::config
