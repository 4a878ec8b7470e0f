#pragma once
// The timeline of one step on the page of `sluice report`. Thread-safe: a free function without
// state.

#include <string>

#include "report/trace_step.hpp"

namespace sluice::cli {

// The legend and the picture of a step, with a row for each lane.
std::string step_timeline(const TracedStep& step);

}  // namespace sluice::cli
