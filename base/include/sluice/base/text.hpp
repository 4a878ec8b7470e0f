#pragma once
// Small text helpers for messages that people read. Thread-safe: free functions without state.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The candidate with the smallest Damerau-Levenshtein (optimal string alignment) distance to
// `name`, compared without case; empty when none is near (more than a third of the longer name must
// change).
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

// "1.50 GiB", "64.0 MiB", "17 B": three digits, binary units. parse_bytes (sluice/base/bytes.hpp)
// reads it back.
std::string format_bytes(std::uint64_t size_bytes);

// "1,234,567".
std::string format_count(unsigned long long count);

// A table with a header row: columns line up, numbers (cells that start with a digit, '-' or '+')
// to the right.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Width of a terminal cell sequence: bytes that are not UTF-8 continuation bytes.
std::size_t display_width(std::string_view text);

}  // namespace sluice
