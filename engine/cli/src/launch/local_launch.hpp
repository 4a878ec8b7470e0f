#pragma once
// The ranks of this host: started by this program itself, with torchrun's variables, or around
// mpirun. Confined to thread: main.

#include <functional>
#include <string>

#include "command/arguments.hpp"
#include "launch/host_lines.hpp"
#include "launch/host_list.hpp"
#include "launch/launched_ranks.hpp"

namespace sluice::cli {

// GPUs of NVIDIA's driver: its files in `folder` (/dev) whose names end in a number. A container
// has those of its own GPUs, under the numbers that the host gave them.
unsigned count_gpu_files(const std::string& folder);

// Where the ranks' output goes, and lines of the launcher itself.
struct LaunchOutput {
  int out_fd = 1;
  std::function<void(const std::string&)> say;
};

// Runs one rank for each slot of `host` until all have ended. `how`: torchrun, or mpirun. Throws
// InvalidArgument when a program is absent, or the cores do not suffice.
GroupEnd run_ranks_here(const LaunchArguments& arguments, const Host& host, LaunchHow how,
                        const LaunchOutput& output);

// Runs a line of mpirun or srun for several hosts until it ends; it shows the ranks itself.
GroupEnd run_line_here(const LaunchArguments& arguments, const HostLine& line,
                       const LaunchOutput& output);

}  // namespace sluice::cli
