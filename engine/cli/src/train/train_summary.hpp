#pragma once
// What `train` shows when it is done: bytes per tier, what bounds the step, losses, and what to do
// next. Thread-safe: a free function without state.

#include <string>

#include "sluice/plan/plan.hpp"
#include "sluice/train/report.hpp"

namespace sluice::cli {

std::string run_summary(const train::RunReport& report);

// How the weights of this run can be used: lines with the commands, or the line that says that
// nothing was kept.
std::string next_steps(const std::string& program, const train::RunReport& report,
                       const plan::Plan& plan, const std::string& model_path);

}  // namespace sluice::cli
