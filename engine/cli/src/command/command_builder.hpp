#pragma once
// What the files that declare commands share: the command line that is being built. Private to
// arguments.cpp and *_arguments.cpp. Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "command/arguments.hpp"

namespace sluice::cli {

// One command line as it is built: options write to the members, and `select`, set by the command
// that is named, makes of them the command of `invocation`, or throws InvalidArgument.
struct Building {
  Invocation invocation;
  train::TrainRequest run;
  std::vector<std::string> configs;  // of `run`: the configuration, then files over it
  PlanArguments plan;
  train::GenerateRequest generate;
  ExportArguments export_arguments;
  ReportArguments report;
  ConfigCheckArguments check;
  NvmeBenchArguments nvme_bench;
  NvmeTuneArguments nvme_tune;
  NvmeVerifyArguments nvme_verify;
  NvmeCleanArguments nvme_clean;
  std::function<void()> select;
};

// A command with what every command has: --help and --json.
CLI::App& add_command(CLI::App& parent, Building& building, const std::string& name,
                      const std::string& description, const std::string& example);

}  // namespace sluice::cli
