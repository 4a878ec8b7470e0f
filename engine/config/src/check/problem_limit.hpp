#pragma once
// How many problems of a file one ConfigError names. Thread-safe: a constant.

#include <cstddef>

namespace sluice::config {

// Further problems show once these are mended. A hostile file has 200,000.
inline constexpr std::size_t kMostProblems = 100;

}  // namespace sluice::config
