#pragma once
// Limits on the memory of this process: those of its control groups, and that on locked memory.
// Not here: the machine's memory (sluice/plan/machine.hpp).
//
// Each function reads /proc and /sys below `root`: "" for this machine; tests give a folder.
// Thread-safe: free functions without state.

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::plan {

// Memory of the control groups that this process is in.
struct GroupMemory {
  std::uint64_t limit_bytes = 0;      // the least limit
  std::uint64_t available_bytes = 0;  // the least that a group leaves
  std::string limit_file;             // states the least limit
};

// The groups of version 1 and version 2, each with those of its ancestors that are mounted here.
// Inactive pages of files count as available. Empty when no group has a limit.
std::optional<GroupMemory> group_memory(const std::string& root = "");

// Bytes that this process may lock: RLIMIT_MEMLOCK, or offload::kUnlimited with the capability
// CAP_IPC_LOCK of the machine. Root of a container usually lacks the capability.
std::uint64_t lockable_bytes(const std::string& root = "");

}  // namespace sluice::plan
