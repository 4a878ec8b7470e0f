#pragma once
// How a run that was stopped goes on, for people.

#include <string>
#include <vector>

#include "sluice/train/library.hpp"

namespace sluice::cli {

// The environment variable that `sluice launch` gives its ranks: its own command line, quoted for a
// shell.
inline constexpr const char* kLaunchLineVariable = "SLUICE_LAUNCH_LINE";

// The command line that continues the run: `argv`, the arguments of this process, with --resume.
// For several ranks it is that of `sluice launch`, or begins with a line on how to start them.
// Inputs that were pipes are named, since they must be given again. Each line is indented by two
// spaces.
std::string resume_lines(std::vector<std::string> argv, const train::TrainRequest& request);

}  // namespace sluice::cli
