#pragma once
// Readers for the small files of /proc and /sys. Thread-safe: free functions without state.

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::cli {

// The file's text without the newline at its end; empty when it cannot be read.
std::string read_small_file(const std::string& path);
// The whole number in the file; empty for other content ("max") and for an absent file.
std::optional<std::uint64_t> read_number(const std::string& path);

}  // namespace sluice::cli
