#pragma once
// The command group `sluice nvme`. Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>

#include "command/command_builder.hpp"

namespace sluice::cli {

void add_nvme(CLI::App& root, Building& building);

}  // namespace sluice::cli
