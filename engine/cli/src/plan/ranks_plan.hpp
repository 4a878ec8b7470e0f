#pragma once
// The plan for many ranks: sluice plan --ranks. Confined to thread: main.

#include "command/arguments.hpp"
#include "command/session.hpp"

namespace sluice::cli {

// Prints the assumptions, the bytes of a rank and a host on each tier, and the seconds of each
// link, for each number of ranks. Throws InvalidArgument and ConfigError for files as run_plan()
// does.
int run_ranks_plan(const PlanArguments& arguments, Session& session);

}  // namespace sluice::cli
