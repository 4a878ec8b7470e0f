#pragma once
// Constants and checks shared by the reader and the writer of safetensors files.
// Thread-safe: free functions without state.

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::models {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

inline constexpr std::uint64_t kHeaderLengthBytes = 8;
// The format's own limit for the JSON header.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
// Elements converted to or from 16 bits at a time.
inline constexpr std::size_t kConvertCount = 64ULL * 1024;

// Elements of a shape; a shape without dimensions has one. Throws InvalidArgument when a dimension
// is negative, or when the product exceeds 64 bits.
inline std::uint64_t element_count(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) {
    SLUICE_CHECK(dimension >= 0, "a dimension of " + std::to_string(dimension));
    count = checked_mul(count, static_cast<std::uint64_t>(dimension));
  }
  return count;
}

// Throws InvalidArgument unless the tensor `name` of `count` elements has `size` from `offset` on.
inline void check_elements(const std::string& path, const std::string& name, std::uint64_t count,
                           std::uint64_t offset, std::size_t size) {
  SLUICE_CHECK(offset <= count && size <= count - offset,
               path + ": elements " + std::to_string(offset) + " to " +
                   std::to_string(offset + size) + " of tensor " + name + ", which has " +
                   std::to_string(count));
}

}  // namespace sluice::models
