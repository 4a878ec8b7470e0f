#pragma once
// Probes of `doctor`: facts about the machine, its drives, and this build. A probe leaves nothing
// behind. Thread-safe: values and free functions without state.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::cli {

enum class DoctorState { fact, on, off };

struct DoctorRow {
  std::string name;
  DoctorState state = DoctorState::fact;
  std::string detail;  // the fact; on: its use or version; off: the reason and the remedy
  std::vector<std::pair<std::string, std::uint64_t>> numbers;  // for --json
};

struct DriveRow {
  std::string mount_point;
  std::string file_system;
  std::string device;              // "nvme0n1", "overlay"
  std::string model;               // empty: unknown to the kernel
  std::optional<bool> rotational;  // absent: the mount has no block device of its own
  bool virtual_drive = false;      // provided by a hypervisor, whose "rotational" says nothing
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool writable = false;  // by this process; O_DIRECT is tried only on a writable drive
  bool direct = false;    // a block was written and read with O_DIRECT
  std::string why_not_direct;
  std::uint32_t alignment_bytes = 0;  // for offsets and sizes with O_DIRECT
};

std::vector<DoctorRow> probe_cpu_and_memory();
std::vector<DoctorRow> probe_devices();  // GPU, asynchronous I/O
std::vector<DoctorRow> probe_libraries();
// Local file systems, one row each, at the mount point closest to the root.
std::vector<DriveRow> probe_drives();

// One mounted file system as /proc/self/mountinfo names it.
struct Mount {
  std::string device_number;  // "259:1"
  std::string mount_point;
  std::string file_system;
  std::string source;
  bool read_only = false;
};
// Parses the text of a mountinfo file; malformed lines are left out.
std::vector<Mount> parse_mounts(const std::string& mountinfo);
// The mounts that store bytes on a drive of this machine, and a /tmp in memory. Each file system
// appears once.
std::vector<Mount> local_mounts(const std::vector<Mount>& mounts);

}  // namespace sluice::cli
