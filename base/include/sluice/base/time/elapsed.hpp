#pragma once
// Time that has passed. Thread-safe: a free function without state.

#include <chrono>

namespace sluice {

// Seconds from `begin` until now.
inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sluice
