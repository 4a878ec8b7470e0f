#pragma once
// The seeds of a test's schedules.

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace sluice::train::test {

// Seeds 1, 2, ... for one of `tests` tests, which share the schedules of a run of the tests: 50, or
// as many as SLUICE_SCHEDULES says.
inline std::vector<std::uint64_t> schedules(std::size_t tests) {
  const char* asked = std::getenv("SLUICE_SCHEDULES");
  const std::size_t all = asked == nullptr ? 50 : std::stoul(asked);
  std::vector<std::uint64_t> seeds((all + tests - 1) / tests);
  std::iota(seeds.begin(), seeds.end(), std::uint64_t{1});
  return seeds;
}

}  // namespace sluice::train::test
