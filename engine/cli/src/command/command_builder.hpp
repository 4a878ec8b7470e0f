#pragma once
// The command line while it is built, shared by the files that declare commands. Private to
// *_arguments.cpp. Thread-compatible: callers synchronise.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "command/arguments.hpp"

namespace sluice::cli {

// Options write to the members. The command that is named sets `select`, which turns the members
// into the command of `invocation`, or throws InvalidArgument.
struct Building {
  Invocation invocation;
  train::TrainRequest run;
  std::vector<std::string> configs;  // for `run`: the configuration, then files over it
  PlanArguments plan;
  train::GenerateRequest generate;
  ExportArguments export_arguments;
  ReportArguments report;
  ConfigCheckArguments check;
  ConfigResolveArguments resolve;
  ConfigRatesArguments rates;
  ConfigExplainArguments explain;
  ConfigConvertArguments convert;
  NvmeBenchArguments nvme_bench;
  NvmeTuneArguments nvme_tune;
  NvmeVerifyArguments nvme_verify;
  NvmeCleanArguments nvme_clean;
  LaunchArguments launch;
  std::function<void()> select;
};

// Adds a command with the options of every command: --help and --json.
CLI::App& add_command(CLI::App& parent, Building& building, const std::string& name,
                      const std::string& description, const std::string& example);

// Where the command line names `command`, what `make()` returns is the command of `invocation`.
// `make` is called after all options were read, and may throw InvalidArgument.
template <typename Make>
void when_named(CLI::App& command, Building& building, Make make) {
  command.parse_complete_callback([&building, make] {
    building.select = [&building, make] { building.invocation.command = make(); };
  });
}

}  // namespace sluice::cli
