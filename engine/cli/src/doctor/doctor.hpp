#pragma once
// What `doctor` finds out: facts of the machine, of its drives, and of this build. Looks and tries;
// changes nothing. Thread-safe: values and free functions without state.

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
  std::string detail;  // the fact; for on and off: with what, or why not and what to change
  std::vector<std::pair<std::string, std::uint64_t>> numbers;  // for --json
};

struct DriveRow {
  std::string mount_point;
  std::string file_system;
  std::string device;              // "nvme0n1", "overlay"
  std::string model;               // empty: the kernel does not say
  std::optional<bool> rotational;  // none: no block device of its own
  bool virtual_drive = false;      // given by a hypervisor, whose "rotational" says nothing
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool writable = false;  // by this process; else O_DIRECT was not tried
  bool direct = false;    // a block was written and read with O_DIRECT
  std::string why_not_direct;
  std::uint32_t alignment_bytes = 0;  // of offsets and sizes with O_DIRECT
};

std::vector<DoctorRow> probe_cpu_and_memory();
std::vector<DoctorRow> probe_devices();  // GPU, asynchronous I/O
std::vector<DoctorRow> probe_libraries();
// Local file systems, one row each: where it is mounted closest to the root.
std::vector<DriveRow> probe_drives();

// One mounted file system as /proc/self/mountinfo names it.
struct Mount {
  std::string device_number;  // "259:1"
  std::string mount_point;
  std::string file_system;
  std::string source;
  bool read_only = false;
};
// The text of a mountinfo file; lines that cannot be read are left out.
std::vector<Mount> parse_mounts(const std::string& mountinfo);
// Those that keep bytes on a drive of this machine, or in its memory for /tmp; once per file
// system.
std::vector<Mount> local_mounts(const std::vector<Mount>& mounts);

}  // namespace sluice::cli
