#pragma once
// What kind of file system a path lies on, and what that means for a swap directory.
// Thread-safe: free functions without state.

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::nvme {

struct FileSystemKind {
  std::string_view name;  // "tmpfs"; empty: not one of those that are known here
  // One clause on speed and durability, for people; empty for a file system on a local drive.
  std::string_view caution;
};

// By statfs f_type, of which 32 bits count.
FileSystemKind file_system_kind(std::uint32_t magic);

// "DIR is on tmpfs, ..."; empty when there is nothing to say. Throws IoError when `path` is
// absent.
std::string file_system_caution(const std::string& path);

}  // namespace sluice::nvme
