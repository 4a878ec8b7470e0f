#pragma once
// The commands train and plan, which take the same options: one line of options works for both.
// Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>

#include "command/command_builder.hpp"

namespace sluice::cli {

void add_train(CLI::App& root, Building& building);
void add_plan(CLI::App& root, Building& building);

}  // namespace sluice::cli
