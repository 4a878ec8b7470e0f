#include "sluice/plan/machine.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>

#include "machine/device_choice.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/proc.hpp"
#include "sluice/base/threads.hpp"
#include "sluice/nvme/file.hpp"
#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/storage_choices.hpp"

namespace sluice::plan {

namespace {

// The system call knows no number for memory that is available: caches count as used.
std::uint64_t sysinfo_bytes(const std::string& key) {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return 0;
  const std::uint64_t units = key == "MemTotal" ? info.totalram : info.freeram + info.bufferram;
  return units * info.mem_unit;
}

// Where /proc is not mounted, the system call tells. Where the kernel says 0, it is 0.
std::uint64_t meminfo_bytes(const std::string& key) {
  const std::optional<std::uint64_t> size_bytes = proc_bytes("/proc/meminfo", {key});
  return size_bytes ? *size_bytes : sysinfo_bytes(key);
}

int usable_cores() {
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return std::max(1, allowed_cores().value_or(online));
}

std::uint64_t address_space_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::uint64_t>::max();
  return limit.rlim_cur;
}

// Disk bytes of an earlier run's files in the directory. The next run reuses their space.
std::uint64_t reusable_bytes(const std::string& directory) {
  std::uint64_t sum = 0;
  if (access(directory.c_str(), R_OK | X_OK) != 0) return sum;  // the run reports it
  for (const std::string& path : offload::SwapStore::list_files(directory)) {
    struct stat status {};
    if (stat(path.c_str(), &status) == 0)
      sum += static_cast<std::uint64_t>(status.st_blocks) * kBytesPerStatBlock;
  }
  return sum;
}

// Bytes of the files below a directory.
std::uint64_t tree_bytes(const std::string& directory) {
  namespace fs = std::filesystem;
  std::uint64_t sum = 0;
  std::error_code ignored;
  for (auto entry = fs::recursive_directory_iterator(directory, ignored);
       entry != fs::recursive_directory_iterator(); entry.increment(ignored)) {
    if (entry->is_regular_file(ignored)) sum += entry->file_size(ignored);
  }
  return sum;
}

// Records the directory's file system. Returns false when the directory is missing.
bool note_file_system(MachineFacts& facts, const std::string& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) return false;
  facts.file_systems.emplace_back(directory, status.st_dev);
  return true;
}

std::uint64_t available_within(const std::optional<GroupMemory>& group) {
  const std::uint64_t machine = meminfo_bytes("MemAvailable");
  return group ? std::min(machine, group->available_bytes) : machine;
}

// A drive under two names (a link, a mount) would count as two.
void refuse_named_twice(const std::vector<std::string>& directories) {
  for (std::size_t i = 0; i < directories.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      std::error_code absent;
      SLUICE_CHECK(!std::filesystem::equivalent(directories[i], directories[j], absent),
                   directories[i] +
                       " is named twice among the directories to stripe over, also as " +
                       directories[j] + ": name one directory on each drive");
    }
  }
}

}  // namespace

std::uint64_t available_memory_bytes() {
  return available_within(group_memory());
}

MachineFacts probe_machine(const config::TrainConfig& config) {
  MachineFacts facts;
  facts.total_memory_bytes = meminfo_bytes("MemTotal");
  facts.group_memory = group_memory();
  facts.available_memory_bytes = available_within(facts.group_memory);
  facts.memlock_bytes = lockable_bytes();
  facts.address_space_bytes = address_space_limit();
  facts.cores = usable_cores();
  choose_device(facts, config.sluice.device);
  for (const config::OffloadConfig* offload :
       {&config.zero.offload_optimizer, &config.zero.offload_param}) {
    refuse_named_twice(offload->directories);
    for (const std::string& directory : offload->directories) {
      if (!note_file_system(facts, directory)) continue;
      facts.free_disk_bytes.emplace_back(
          directory, nvme::free_disk_bytes(directory) + reusable_bytes(directory));
    }
  }
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!checkpoints.empty()) {
    note_file_system(facts, checkpoints);
    facts.checkpoint_bytes = tree_bytes(checkpoints);
    facts.free_disk_bytes.emplace_back(
        checkpoints, nvme::free_disk_bytes(existing_part(checkpoints)) + facts.checkpoint_bytes);
  }
  return facts;
}

}  // namespace sluice::plan
