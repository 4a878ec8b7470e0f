#pragma once
// The options of launch. Private to parse_arguments.cpp. Thread-compatible: callers synchronise.

#include "command/command_builder.hpp"

namespace sluice::cli {

void add_launch(CLI::App& root, Building& building);

}  // namespace sluice::cli
