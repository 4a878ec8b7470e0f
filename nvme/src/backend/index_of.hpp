#pragma once
// index_of: the number that a name stands for. Not installed. Thread-safe: a free function without
// state.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::nvme {

// The place of `name` among `names`. Throws InvalidArgument with the names, and the nearest of
// them: `name` is no known `what`.
inline std::size_t index_of(const std::string& what, std::string_view name,
                            std::span<const std::string_view> names) {
  const auto found = std::ranges::find(names, name);
  SLUICE_CHECK(found != names.end(), "unknown " + what + " \"" + std::string(name) +
                                         "\": expected one of " + join(names, ", ") +
                                         did_you_mean(nearest_name(name, names)));
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace sluice::nvme
