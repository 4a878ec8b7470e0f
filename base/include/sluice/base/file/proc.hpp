#pragma once
// Values of the kernel's files of lines "KEY: value": /proc/self/status, /proc/meminfo and
// /proc/cpuinfo. Thread-safe: free functions without state.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The first value of the key, without the spaces before it; empty without one, and where the file
// cannot be read.
std::string proc_field(const std::string& path, std::string_view key);
// The sum of these keys' values, which the file gives in kB ("16318480 kB"), by one reading; empty
// where it has none of them.
std::optional<std::uint64_t> proc_bytes(const std::string& path,
                                        std::initializer_list<std::string_view> keys);

}  // namespace sluice
