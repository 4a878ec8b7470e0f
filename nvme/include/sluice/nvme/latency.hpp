#pragma once
// LatencyHistogram: latencies of requests from 1 ns to about 290 years, eight equal buckets for
// each octave, so that a quantile is at most 12.5 % too high. Counting a latency neither allocates
// nor locks.
//
// Thread-compatible: callers synchronise.

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace sluice::nvme {

class LatencyHistogram {
 public:
  void record(std::chrono::nanoseconds latency) { ++counts_[bucket_of(latency.count())]; }

  std::uint64_t count() const;
  // The smallest bucket end that at least `share` (0 to 1) of the latencies do not exceed; 0
  // without latencies.
  std::chrono::nanoseconds quantile(double share) const;

  // The latencies recorded after `before`, an earlier copy of this histogram.
  LatencyHistogram since(const LatencyHistogram& before) const;
  void add(const LatencyHistogram& other);

 private:
  static constexpr std::size_t kPerOctave = 8;
  static constexpr std::size_t kCount = 61 * kPerOctave;

  // Below 8 ns every nanosecond is a bucket; above, the three bits after the highest choose it.
  static std::size_t bucket_of(std::int64_t nanoseconds) {
    const auto value = static_cast<std::uint64_t>(nanoseconds < 0 ? 0 : nanoseconds);
    if (value < kPerOctave) return value;
    const auto octave = static_cast<std::size_t>(std::bit_width(value)) - 4;  // 8..15 is octave 0
    return (octave + 1) * kPerOctave + ((value >> octave) & (kPerOctave - 1));
  }
  static std::uint64_t end_of(std::size_t bucket);

  std::array<std::uint64_t, kCount> counts_{};
};

}  // namespace sluice::nvme
