#pragma once
// SlowdownWatch: notices that a drive has become much slower than before.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sluice::train {

// Compares the median of the last few rates with the best such median so far. Each rate covers at
// least a twentieth of a second. Thread-compatible: callers synchronise.
class SlowdownWatch {
 public:
  struct Slowdown {
    std::int64_t since_step = 0;
    double before = 0;  // bytes per second
    double now = 0;     // bytes per second
  };

  // Adds a step in which the drive moved `bytes` during `busy_seconds`. Returns a slowdown once,
  // and again only after the drive has recovered.
  std::optional<Slowdown> add(std::int64_t step, double bytes, double busy_seconds) {
    bytes_ += bytes;
    busy_seconds_ += busy_seconds;
    if (busy_seconds_ < kLeastSeconds) return std::nullopt;
    rates_[count_ % kRates] = {step, bytes_ / busy_seconds_};
    bytes_ = busy_seconds_ = 0;
    if (++count_ < kRates) return std::nullopt;
    std::array<Rate, kRates> sorted = rates_;
    std::sort(sorted.begin(), sorted.end(),
              [](const Rate& a, const Rate& b) { return a.bytes_per_second < b.bytes_per_second; });
    const double now = sorted[kRates / 2].bytes_per_second;
    best_ = std::max(best_, now);
    const bool slow = now * kTimes < best_;
    const bool news = slow && !told_;
    if (now * 2 > best_ || slow) told_ = slow;
    if (!news) return std::nullopt;
    std::int64_t since = step;
    for (std::size_t i = 0; i <= kRates / 2; ++i) since = std::min(since, sorted[i].step);
    return Slowdown{since, best_, now};
  }

 private:
  static constexpr std::size_t kRates = 5;
  static constexpr double kLeastSeconds = 0.05;  // shorter times are noise
  // Rates of drives that share a machine vary by a factor of two from minute to minute.
  static constexpr double kTimes = 4;

  struct Rate {
    std::int64_t step = 0;  // the last step that the rate covers
    double bytes_per_second = 0;
  };
  std::array<Rate, kRates> rates_{};
  double bytes_ = 0;
  double busy_seconds_ = 0;
  std::size_t count_ = 0;
  double best_ = 0;
  bool told_ = false;
};

}  // namespace sluice::train
