#pragma once
// The hosts of a run and the slots (GPUs, or places for processes) that ranks take on them, in
// DeepSpeed's notation. Nothing is resolved or asked. Thread-safe: values and free functions
// without state.

#include <string>
#include <vector>

namespace sluice::cli {

struct Host {
  std::string name;          // or USER@NAME, for mpirun and ssh; or an address
  std::vector<int> slots;    // numbers of the slots that ranks take, ascending; not empty
  bool is_filtered = false;  // the slots were named: GPUs other than these are hidden
};

// Hosts of a hostfile: a line "NAME slots=N" for each, with comments behind '#'. `path` is for
// messages. Throws InvalidArgument, with path and line, for other lines, a host that is there
// twice, and no hosts.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& path);

// The hosts and slots that a filter leaves, in the order of `hosts`. A filter names hosts, with '@'
// between them, and slots behind a ':': "host1@host2:0,2" is all of host1, and two slots of host2.
// At most one of the two is not empty. A host USER@NAME of the hostfile is named NAME. Throws
// InvalidArgument, with the flag, for hosts and slots that are not there, and when nothing is left.
std::vector<Host> filter_hosts(std::vector<Host> hosts, const std::string& include,
                               const std::string& exclude);

// The first `nodes` hosts, each with its first `slots` slots. 0: all. Throws InvalidArgument when
// there are fewer.
std::vector<Host> first_of(std::vector<Host> hosts, unsigned nodes, unsigned slots);

// Ranks on all hosts: one for each slot.
int count_ranks(const std::vector<Host>& hosts);

// The name of a host without its user.
std::string address_of(const std::string& name);

// The GPUs that a value of CUDA_VISIBLE_DEVICES leaves to a process: CUDA reads numbers and UUIDs
// ("GPU-...", "MIG-...") up to the first name that is neither.
std::vector<std::string> visible_gpus(const std::string& variable);

}  // namespace sluice::cli
