#pragma once
// Measures the rates of this machine with the shapes of a plan. Predictions use these rates. A free
// function; confined to the thread that computes. Not installed.

#include <atomic>

#include "sluice/plan/plan.hpp"
#include "sluice/plan/prediction.hpp"
#include "sluice/train/library.hpp"

namespace sluice::train {

// Blocks for up to a minute; the machine should be idle otherwise. Meanwhile it takes memory for
// one micro-batch in one unit, and up to 2 GiB of drive in each swap directory. Throws IoError, and
// Interrupted when `stop` is the number of a signal.
plan::MachineRates probe_rates(const plan::Plan& plan, const ProbeProgress& progress,
                               const std::atomic<int>& stop);

}  // namespace sluice::train
