#include "sluice/nvme/latency.hpp"

#include <cmath>
#include <numeric>

namespace sluice::nvme {

std::uint64_t LatencyHistogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

// The largest value of a bucket.
std::uint64_t LatencyHistogram::end_of(std::size_t bucket) {
  if (bucket < kPerOctave) return bucket;
  const std::size_t octave = bucket / kPerOctave - 1;
  return ((kPerOctave + bucket % kPerOctave + 1) << octave) - 1;
}

std::chrono::nanoseconds LatencyHistogram::quantile(double share) const {
  const std::uint64_t all = count();
  if (all == 0) return std::chrono::nanoseconds(0);
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(all)));
  std::uint64_t seen = 0;
  std::size_t bucket = 0;
  for (; bucket + 1 < kCount; ++bucket) {
    seen += counts_[bucket];
    if (seen > 0 && seen >= wanted) break;
  }
  return std::chrono::nanoseconds(end_of(bucket));
}

LatencyHistogram LatencyHistogram::since(const LatencyHistogram& before) const {
  LatencyHistogram difference;
  for (std::size_t i = 0; i < kCount; ++i) difference.counts_[i] = counts_[i] - before.counts_[i];
  return difference;
}

void LatencyHistogram::add(const LatencyHistogram& other) {
  for (std::size_t i = 0; i < kCount; ++i) counts_[i] += other.counts_[i];
}

}  // namespace sluice::nvme
