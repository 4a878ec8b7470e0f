// doctor: file systems and the drives below them.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <system_error>

#include "doctor/doctor.hpp"
#include "files/system_files.hpp"
#include "sluice/base/error.hpp"
#include "sluice/nvme/file.hpp"

namespace sluice::cli {

namespace {

// mountinfo writes space, tab, newline and backslash as three octal digits.
std::string unescape(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size();
    out +=
        octal ? static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8)) : text[i];
    if (octal) i += 3;
  }
  return out;
}

bool stores_bytes_here(const Mount& mount) {
  static const std::set<std::string> on_drives = {"ext2",    "ext3",  "ext4",    "xfs",  "btrfs",
                                                  "f2fs",    "zfs",   "jfs",     "vfat", "exfat",
                                                  "overlay", "ntfs3", "bcachefs"};
  // A /tmp in memory is listed, because people mistake it for a drive.
  return on_drives.count(mount.file_system) > 0 ||
         (mount.file_system == "tmpfs" && mount.mount_point == "/tmp");
}

// The folder of the mount's block device below /sys; for a partition the folder of the whole drive.
// Empty when the mount has no block device.
std::filesystem::path block_device(const Mount& mount) {
  std::string number = mount.device_number;
  struct stat source = {};
  // On btrfs and others a mount's number is not the number of a device; the source names the
  // device.
  if (mount.source.rfind("/dev/", 0) == 0 && ::stat(mount.source.c_str(), &source) == 0) {
    number = std::to_string(major(source.st_rdev)) + ":" + std::to_string(minor(source.st_rdev));
  }
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical("/sys/dev/block/" + number, error);
  if (error) return {};
  if (std::filesystem::exists(path / "partition", error)) path = path.parent_path();
  return path;
}

// A directory on the mounted file system where this process may write; empty when none is found.
std::string writable_directory(const Mount& mount) {
  struct stat of_mount = {};
  if (mount.read_only || ::stat(mount.mount_point.c_str(), &of_mount) != 0) return "";
  std::vector<std::string> candidates = {mount.mount_point};
  std::error_code error;
  candidates.push_back(std::filesystem::current_path(error).string());
  if (const char* home = std::getenv("HOME"); home != nullptr) candidates.emplace_back(home);
  candidates.insert(candidates.end(), {"/var/tmp", "/tmp"});
  for (const std::string& candidate : candidates) {
    struct stat facts = {};
    const bool same = ::stat(candidate.c_str(), &facts) == 0 && facts.st_dev == of_mount.st_dev;
    if (same && ::access(candidate.c_str(), W_OK | X_OK) == 0) return candidate;
  }
  return "";
}

// Writes one block with O_DIRECT and reads the block back. Throws IoError, or StorageError when the
// bytes differ.
void try_direct_io(const nvme::SwapFile& file) {
  const std::size_t size =
      std::max({file.offset_alignment(), file.memory_alignment(), std::uint32_t{4096}});
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  const auto allocate = [&] { return std::unique_ptr<void, Free>(std::aligned_alloc(size, size)); };
  const auto written = allocate();
  const auto read = allocate();
  if (!written || !read) throw OutOfMemory("host", 2 * size, 0, "two blocks for trying O_DIRECT");
  std::memset(written.get(), 0x5A, size);
  const auto done = [&](ssize_t count, const char* operation) {
    if (count != static_cast<ssize_t>(size))
      throw IoError(count < 0 ? errno : EIO, operation, file.path(), 0, size);
  };
  done(::pwrite(file.fd(), written.get(), size, 0), "pwrite");
  done(::pread(file.fd(), read.get(), size, 0), "pread");
  if (std::memcmp(written.get(), read.get(), size) != 0) {
    throw StorageError(file.path(), "O_DIRECT read other bytes than were written");
  }
}

void probe_direct_io(const Mount& mount, DriveRow& row) {
  const std::string directory = writable_directory(mount);
  row.writable = !directory.empty();
  if (!row.writable) {
    row.why_not_direct =
        mount.read_only ? "mounted read-only" : "no directory here that this user may write to";
    return;
  }
  try {
    const nvme::SwapFile file = nvme::make_nameless_file(directory);
    row.why_not_direct = file.why_buffered();
    if (!file.direct()) return;
    try_direct_io(file);
    row.direct = true;
    row.alignment_bytes = file.offset_alignment();
  } catch (const std::exception& error) {
    row.why_not_direct = error.what();
  }
}

DriveRow probe_drive(const Mount& mount) {
  DriveRow row;
  row.mount_point = mount.mount_point;
  row.file_system = mount.file_system;
  const std::filesystem::path device = block_device(mount);
  row.device = device.empty() ? mount.source : device.filename().string();
  if (!device.empty()) {
    row.model = read_small_file(device / "device" / "model");
    row.virtual_drive = device.string().find("/virtio") != std::string::npos;
    if (const auto rotational = read_number(device / "queue" / "rotational"))
      row.rotational = *rotational != 0;
  }
  struct statvfs facts = {};
  if (::statvfs(mount.mount_point.c_str(), &facts) == 0) {
    row.total_bytes = std::uint64_t{facts.f_frsize} * facts.f_blocks;
    row.free_bytes = std::uint64_t{facts.f_frsize} * facts.f_bavail;
  }
  probe_direct_io(mount, row);
  return row;
}

}  // namespace

std::vector<Mount> parse_mounts(const std::string& mountinfo) {
  // "36 35 98:0 /root /mnt rw,noatime master:1 - ext3 /dev/root rw": optional fields end at the
  // dash (proc(5)).
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, root, options, word;
    Mount mount;
    if (!(words >> id >> parent >> mount.device_number >> root >> mount.mount_point >> options))
      continue;
    while (words >> word && word != "-") {
    }
    if (!(words >> mount.file_system >> mount.source)) continue;
    mount.mount_point = unescape(mount.mount_point);
    mount.source = unescape(mount.source);
    mount.read_only = options == "ro" || options.rfind("ro,", 0) == 0;
    mounts.push_back(mount);
  }
  return mounts;
}

std::vector<Mount> local_mounts(const std::vector<Mount>& mounts) {
  std::map<std::string, Mount> by_device;
  for (const Mount& mount : mounts) {
    if (!stores_bytes_here(mount)) continue;
    const auto [at, added] = by_device.emplace(mount.device_number, mount);
    // A file system with bind mounts appears in several places, some of them single files.
    if (!added && mount.mount_point.size() < at->second.mount_point.size()) at->second = mount;
  }
  std::vector<Mount> found;
  found.reserve(by_device.size());
  for (const auto& [number, mount] : by_device) found.push_back(mount);
  std::sort(found.begin(), found.end(),
            [](const Mount& a, const Mount& b) { return a.mount_point < b.mount_point; });
  return found;
}

std::vector<DriveRow> probe_drives() {
  std::vector<DriveRow> rows;
  for (const Mount& mount : local_mounts(parse_mounts(read_small_file("/proc/self/mountinfo")))) {
    std::error_code error;
    if (std::filesystem::is_directory(mount.mount_point, error)) rows.push_back(probe_drive(mount));
  }
  return rows;
}

}  // namespace sluice::cli
