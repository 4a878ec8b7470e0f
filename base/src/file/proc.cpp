#include "sluice/base/file/proc.hpp"

#include <cstdlib>
#include <fstream>

#include "sluice/base/bytes.hpp"

namespace sluice {

std::string proc_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    // Spaces stand between a key of /proc/cpuinfo and its colon.
    if (!line.starts_with(key)) continue;
    const std::size_t colon = line.find_first_not_of(" \t", key.size());
    if (colon == std::string::npos || line[colon] != ':') continue;
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::uint64_t proc_bytes(const std::string& path, std::string_view key) {
  return std::strtoull(proc_field(path, key).c_str(), nullptr, 10) * kKiB;
}

}  // namespace sluice
