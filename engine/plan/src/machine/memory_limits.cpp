#include "sluice/plan/memory_limits.hpp"

#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "sluice/base/file/proc.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::plan {

namespace {

// The names that a version of control groups gives to its files.
struct Version {
  const char* limit_file;
  const char* used_file;
  const char* reclaimable_key;  // in memory.stat
};
constexpr Version kVersion1{"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version kVersion2{"/memory.max", "/memory.current", "inactive_file"};

// Version 1 writes "no limit" as a number near 2^63, version 2 as "max".
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60U;

// A mounted tree of groups. `top` is the group that the mount point shows: "/", or in a container
// the container's own group.
struct Hierarchy {
  const Version* version;
  std::string mount_point;
  std::string top;
};

// Whether `list`, separated by commas, has "memory".
bool has_memory(const std::string& list) {
  return ("," + list + ",").find(",memory,") != std::string::npos;
}

std::vector<Hierarchy> mounted_hierarchies(const std::string& root) {
  // "36 35 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory" (proc(5)).
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream place(line.substr(0, dash));
    std::istringstream system(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    Hierarchy hierarchy{};
    if (!(place >> id >> parent >> device >> hierarchy.top >> hierarchy.mount_point)) continue;
    if (!(system >> type >> source >> options)) continue;
    if (type == "cgroup2") hierarchy.version = &kVersion2;
    if (type == "cgroup" && has_memory(options)) hierarchy.version = &kVersion1;
    if (hierarchy.version != nullptr) found.push_back(std::move(hierarchy));
  }
  return found;
}

// The process's group in the hierarchy of this version; empty when it is in none.
std::string own_group(const std::string& root, const Version& version) {
  // "4:memory:/docker/1f0" in version 1, "0::/user.slice" in version 2.
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool here = &version == &kVersion2 ? controllers.empty() : has_memory(controllers);
    if (here) return line.substr(second + 1);
  }
  return "";
}

// The group's path below the mount point. Empty, which is the mount point, for a group that the
// mount does not show.
std::string path_below(const Hierarchy& hierarchy, const std::string& group) {
  if (hierarchy.top == "/") return group == "/" || group.starts_with("/..") ? "" : group;
  const bool below = group.starts_with(hierarchy.top + "/");
  return below ? group.substr(hierarchy.top.size()) : "";
}

// The number at the beginning of the file; empty for other content ("max") and an absent file.
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The number behind a key of memory.stat; 0 when it is absent.
std::uint64_t stat_of(const std::string& directory, std::string_view wanted) {
  std::ifstream file(directory + "/memory.stat");
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

void add_group(const std::string& directory, const Version& version,
               std::optional<GroupMemory>& memory) {
  const std::string limit_file = directory + version.limit_file;
  const std::optional<std::uint64_t> limit = number_in(limit_file);
  if (!limit || *limit >= kNoLimit) return;
  const std::uint64_t used = number_in(directory + version.used_file).value_or(0);
  const std::uint64_t kept = used - std::min(used, stat_of(directory, version.reclaimable_key));
  const std::uint64_t available = *limit - std::min(*limit, kept);
  if (!memory || *limit < memory->limit_bytes) {
    const std::uint64_t before = memory ? memory->available_bytes : available;
    memory = GroupMemory{*limit, before, limit_file};
  }
  memory->available_bytes = std::min(memory->available_bytes, available);
}

// In a user namespace of its own, a process has its capabilities over that namespace, and not over
// the machine. The machine's own namespace maps all ids to themselves.
bool in_the_machines_user_namespace(const std::string& root) {
  std::ifstream file(root + "/proc/self/uid_map");
  std::uint64_t first = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  if (!(file >> first >> outside >> count)) return true;  // a kernel without user namespaces
  return first == 0 && outside == 0 && count == 0xFFFFFFFFU;
}

bool may_lock_all(const std::string& root) {
  std::istringstream text(proc_field(root + "/proc/self/status", "CapEff"));
  std::uint64_t capabilities = 0;
  if (!(text >> std::hex >> capabilities)) return false;
  const bool granted = ((capabilities >> unsigned{CAP_IPC_LOCK}) & 1U) != 0;
  return granted && in_the_machines_user_namespace(root);
}

}  // namespace

std::optional<GroupMemory> group_memory(const std::string& root) {
  std::optional<GroupMemory> memory;
  for (const Hierarchy& hierarchy : mounted_hierarchies(root)) {
    const std::string top = root + hierarchy.mount_point;
    for (std::string path = path_below(hierarchy, own_group(root, *hierarchy.version));
         !path.empty(); path.erase(path.rfind('/')))
      add_group(top + path, *hierarchy.version, memory);
    add_group(top, *hierarchy.version, memory);
  }
  return memory;
}

std::uint64_t lockable_bytes(const std::string& root) {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return !limited || may_lock_all(root) ? offload::kUnlimited : limit.rlim_cur;
}

}  // namespace sluice::plan
