#pragma once
// Seconds of a step's links. Not installed. Thread-safe: free functions without state.

#include <algorithm>

namespace sluice::plan {

// `amount` over `rate`; 0 where either is unknown.
inline double over(double amount, double rate) {
  return amount > 0 && rate > 0 ? amount / rate : 0;
}

// The name of the link with the most seconds. `links`: pairs of both, not empty.
inline const char* longest(const auto& links) {
  return std::max_element(links.begin(), links.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace sluice::plan
