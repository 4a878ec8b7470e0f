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
// A page of memory; direct I/O of whole pages suits every drive.
inline constexpr std::uint64_t kPageBytes = 4096;

// a + b and a * b. Throw InvalidArgument when the result needs more than 64 bits.
std::uint64_t checked_add(std::uint64_t a, std::uint64_t b);
std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b);

// The smallest multiple of `alignment` that is at least `value`. `alignment`: any number above 0.
// Throws InvalidArgument when it is 0, or when the result needs more than 64 bits.
std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment);
// The largest multiple of `alignment` that is at most `value`. `alignment`: any number above 0.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value - value % alignment;
}
// value / by, rounded up. `by`: above 0.
constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

// Parses "64MiB", "1.5GB", "4096", "2 GiB", "64k" into bytes. Units: B, KB, MB, GB, TB (decimal);
// KiB, MiB, GiB, TiB or K, M, G, T (binary); in any case, after an optional space. A fraction of a
// larger unit is rounded down to whole bytes. Throws InvalidArgument for an unknown unit (with the
// nearest valid one), a negative number, a fraction of a byte, or more than 64 bits.
std::uint64_t parse_bytes(std::string_view text);

// Whether a byte is in both.
inline bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

}  // namespace sluice
