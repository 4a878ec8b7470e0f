#pragma once
// The commands below `sluice config`, and the flags that give values of keys.
// Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <vector>

#include "command/command_builder.hpp"

namespace sluice::cli {

void add_config(CLI::App& root, Building& building);

// Adds --set, and the flags of config::flag_table(), which write to `settings` in their order.
void add_setting_options(CLI::App& command, std::vector<config::Setting>& settings);
// The setting that a number of steps is: the length of a schedule that the file leaves "auto".
config::Setting setting_of_steps(std::int64_t steps, const std::string& flag = "--steps");

}  // namespace sluice::cli
