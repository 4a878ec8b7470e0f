#pragma once
// The kind of file system that a path lies on, and its consequences for a swap directory.
// Thread-safe: free functions without state.

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::nvme {

struct FileSystemKind {
  std::string_view name;  // "tmpfs"; empty when unknown
  // A clause for people about speed and durability; empty for a file system on a local drive.
  std::string_view caution;
};

// The kind with this statfs f_type; `magic` is the lower 32 bits.
FileSystemKind file_system_kind(std::uint32_t magic);

// A warning for people: "DIR is on tmpfs, ..."; empty when the file system is known to suit or
// unknown. Throws IoError, also when `path` does not exist.
std::string file_system_caution(const std::string& path);
// Whether files there are memory (tmpfs, ramfs). Throws as file_system_caution().
bool is_memory_file_system(const std::string& path);

}  // namespace sluice::nvme
