#pragma once
// Measures what a machine does with the shapes of a plan: the rates that predictions are made from.

#include "sluice/plan/plan.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Blocks for up to a minute; the machine should have nothing else to do. Takes memory for one
// micro-batch in one unit and up to 2 GiB of drive in each swap directory, which are gone after.
// Throws IoError; Interrupted when `stop` is the number of a signal.
plan::MachineRates probe_rates(const plan::Plan& plan, const ProbeProgress& progress,
                               const volatile int& stop);

}  // namespace sluice::train
