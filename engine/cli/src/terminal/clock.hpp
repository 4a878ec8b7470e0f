#pragma once
// The time for progress displays. Tests pass a clock of their own. Thread-safe: values and a
// free function without state.

#include <functional>
#include <string>

namespace sluice::cli {

// `seconds` is a monotonic clock; `time_of_day` formats the moment that many seconds from now.
struct ProgressClock {
  std::function<double()> seconds;
  std::function<std::string(double seconds_from_now)> time_of_day;
};
ProgressClock system_clock();

}  // namespace sluice::cli
