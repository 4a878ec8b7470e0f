#pragma once
// Shares of a host's cores for its ranks. Thread-safe: values and free functions without state.

#include <string>
#include <vector>

namespace sluice::cli {

// Logical processors of one rank. `cores`: physical cores among them, or their own number where
// hwloc does not say; the threads of OpenMP that fit.
struct RankCores {
  std::vector<int> cpus;
  int cores = 0;
};

// CPUs of "0-7,16-23", ascending. Throws InvalidArgument, with --bind-core-list, for other texts.
std::vector<int> parse_core_list(const std::string& text);

// Shares the CPUs of `list` (empty: all that this process may use) among `ranks` ranks: equal
// numbers of neighbours in the order of the topology, so that a rank's cores are near each other.
// Nobody gets the cores that are left over. Throws InvalidArgument for a CPU that this process may
// not use, and for fewer CPUs than ranks.
std::vector<RankCores> share_cores(const std::string& list, int ranks);

}  // namespace sluice::cli
