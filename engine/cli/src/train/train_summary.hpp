#pragma once
// The text of `train` at its end: bytes per tier, the limit that bounds a step, losses, and the
// next commands. Thread-safe: a free function without state.

#include <string>

#include "sluice/plan/plan.hpp"
#include "sluice/train/report.hpp"

namespace sluice::cli {

std::string run_summary(const train::RunReport& report);

// The commands that use the weights of this run; or a line that says that no weights were saved.
std::string next_steps(const std::string& program, const train::RunReport& report,
                       const plan::Plan& plan, const std::string& model_path);

}  // namespace sluice::cli
