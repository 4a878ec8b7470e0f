#pragma once
// The median. Thread-safe: a free function without state.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sluice::train {

// The upper middle value if the number of values is even. `values` is not empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace sluice::train
