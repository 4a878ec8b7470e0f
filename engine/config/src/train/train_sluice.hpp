#pragma once
// The section "sluice" of the training configuration.

#include "check/checker.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config {

// Reads and checks the section. Checks that depend on other sections are not here.
void read_sluice(Checker& checker, SluiceConfig& sluice);

}  // namespace sluice::config
