#pragma once
// Command lines that start the ranks of several hosts: mpirun (Open MPI), srun, or torchrun on each
// host. This program has no ssh of its own. Thread-safe: values and free functions without state.

#include <string>
#include <vector>

#include "command/arguments.hpp"
#include "launch/host_list.hpp"

namespace sluice::cli {

struct HostLine {
  std::string host;               // where the line is run; empty: here
  std::vector<std::string> argv;  // argv[0] is a name of PATH
};

// The lines for `how`, which is not automatic. `hosts` of a Slurm job have no names: Slurm knows
// them. Flags that no line can carry throw InvalidArgument: cores of other hosts, with srun also
// slots that differ from host to host.
std::vector<HostLine> host_lines(const LaunchArguments& arguments, const std::vector<Host>& hosts,
                                 LaunchHow how);

}  // namespace sluice::cli
