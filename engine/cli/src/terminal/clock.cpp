#include "terminal/clock.hpp"

#include <chrono>
#include <cmath>
#include <ctime>

namespace sluice::cli {

ProgressClock system_clock() {
  ProgressClock clock;
  clock.seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  clock.time_of_day = [](double seconds_from_now) {
    constexpr double kWeek = 7 * 86400.0;
    if (!std::isfinite(seconds_from_now) || seconds_from_now < 0 || seconds_from_now > kWeek) {
      return std::string();
    }
    const std::time_t then = std::time(nullptr) + static_cast<std::time_t>(seconds_from_now);
    std::tm parts = {};
    ::localtime_r(&then, &parts);
    char text[32];
    const bool another_day = seconds_from_now > 20 * 3600;
    std::strftime(text, sizeof(text), another_day ? "%a %H:%M" : "%H:%M", &parts);
    return std::string(text);
  };
  return clock;
}

}  // namespace sluice::cli
