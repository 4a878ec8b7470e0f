#pragma once
// The commands train and plan, which take the same options: one line of options works for both.
// Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <string>

#include "command/command_builder.hpp"

namespace sluice::cli {

void add_train(CLI::App& root, Building& building);
void add_plan(CLI::App& root, Building& building);
// The file of --rates without that option: $XDG_CACHE_HOME/sluice/rates.json, else
// ~/.cache/sluice/rates.json; empty without a home.
std::string default_rates_path();
// The options of plan for many ranks (plan_ranks_arguments.cpp).
void add_ranks_options(CLI::App& command, RanksArguments& arguments);
// Throws InvalidArgument when an option of many ranks stands without --ranks, or --ranks with
// options of one run.
void check_ranks(const CLI::App& command, const PlanArguments& arguments,
                 const std::string& model_path);

}  // namespace sluice::cli
