#pragma once
// One pass over JSON text that finds the position of each key and the repeated keys, which JsonCpp
// does not report. It also blanks comments (//, /* */ and #). It refuses text that JsonCpp reads
// leniently (numbers such as "-" or "01", control characters in strings) or slowly (deep nesting).
// JsonCpp checks the grammar itself. Thread-safe: free functions without state.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::config {

struct ScanError {
  std::size_t offset = 0;  // bytes
  std::string message;
};

struct ScanResult {
  std::string blanked;  // the text with comments as spaces: same length, same lines
  // Offset of a member's value -> offset of its key.
  std::unordered_map<std::size_t, std::size_t> key_offsets;
  std::vector<std::size_t> repeated_keys;  // offset of each key that repeats one of its object
  std::optional<ScanError> error;          // the first error; the scan stops there
};

ScanResult scan_json(std::string_view text);

// Offset of the first byte outside well-formed UTF-8 (RFC 3629).
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace sluice::config
