#pragma once
// What every device checks of a copy. Not installed.

#include <cstddef>
#include <span>
#include <string>

#include "sluice/base/error.hpp"

namespace sluice::offload {

// Throws InvalidArgument when the spans are not equally long.
inline void check_copy(std::span<std::byte> to, std::span<const std::byte> from) {
  SLUICE_CHECK(to.size() == from.size(), "a copy of " + std::to_string(from.size()) +
                                             " bytes to a span of " + std::to_string(to.size()));
}

}  // namespace sluice::offload
