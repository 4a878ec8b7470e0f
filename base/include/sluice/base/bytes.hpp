#pragma once
// Byte arithmetic that cannot overflow unseen, and byte counts as people write them.
// Thread-safe: free functions without state.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/text.hpp"  // format_bytes

namespace sluice {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
// The unit of st_blocks, whatever the file system's block is (stat(2)).
inline constexpr std::uint64_t kBytesPerStatBlock = 512;

// a + b and a * b; throw InvalidArgument on overflow of 64 bits.
std::uint64_t checked_add(std::uint64_t a, std::uint64_t b);
std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b);

// The smallest multiple of `alignment` (a positive number, any) that is at least / at most `value`.
std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment);
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value - value % alignment;
}
constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

// Parses "64MiB", "1.5GB", "4096", "2 GiB", "64k". Units B, KB, MB, GB, TB (decimal) and KiB, MiB,
// GiB, TiB or K, M, G, T (binary), in any case, optional space before. Throws InvalidArgument that
// names what is wrong: an unknown unit with the nearest valid one, a negative or fractional byte
// count, more than 64 bits.
std::uint64_t parse_bytes(std::string_view text);

// Views over memory as bytes; for crossing into interfaces that move bytes.
template <typename T>
std::span<const std::byte> bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}
template <typename T>
std::span<std::byte> writable_bytes_of(std::span<T> values) {
  return std::as_writable_bytes(values);
}

}  // namespace sluice
