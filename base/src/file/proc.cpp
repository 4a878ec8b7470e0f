#include "sluice/base/file/proc.hpp"

#include <cstdlib>
#include <fstream>
#include <utility>

#include "sluice/base/bytes.hpp"

namespace sluice {

namespace {

// Empty for a line of another key.
std::optional<std::string> value_in(const std::string& line, std::string_view key) {
  if (!line.starts_with(key)) return std::nullopt;
  // Spaces stand between a key of /proc/cpuinfo and its colon.
  const std::size_t colon = line.find_first_not_of(" \t", key.size());
  if (colon == std::string::npos || line[colon] != ':') return std::nullopt;
  const std::size_t value = line.find_first_not_of(" \t", colon + 1);
  return value == std::string::npos ? "" : line.substr(value);
}

}  // namespace

std::string proc_field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (std::optional<std::string> value = value_in(line, key)) return *std::move(value);
  return "";
}

std::optional<std::uint64_t> proc_bytes(const std::string& path,
                                        std::initializer_list<std::string_view> keys) {
  std::ifstream file(path);
  std::optional<std::uint64_t> sum_bytes;
  for (std::string line; std::getline(file, line);)
    for (const std::string_view key : keys)
      if (const std::optional<std::string> value = value_in(line, key))
        sum_bytes = sum_bytes.value_or(0) + std::strtoull(value->c_str(), nullptr, 10) * kKiB;
  return sum_bytes;
}

}  // namespace sluice
