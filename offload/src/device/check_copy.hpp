#pragma once
// The checks of a copy that every device makes. Not installed.

#include <cstddef>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice::offload {

// Throws InvalidArgument when the two sizes of a copy differ.
inline void check_copy(std::size_t to_bytes, std::size_t from_bytes) {
  SLUICE_CHECK(to_bytes == from_bytes, "a copy of " + std::to_string(from_bytes) +
                                           " bytes to a span of " + std::to_string(to_bytes));
}

}  // namespace sluice::offload
