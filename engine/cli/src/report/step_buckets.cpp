#include "report/step_buckets.hpp"

#include <algorithm>

namespace sluice::cli {

void ValueRange::add(double value) {
  if (!std::isfinite(value)) return;
  sum += value;
  low = std::min(low, value);
  high = std::max(high, value);
  ++count;
}

void ValueRange::add(const ValueRange& other) {
  sum += other.sum;
  low = std::min(low, other.low);
  high = std::max(high, other.high);
  count += other.count;
}

void StepBuckets::Bucket::add(std::int64_t step, const StepValues& of_step) {
  last_step = step;
  ++steps;
  for (std::size_t i = 0; i < values.size(); ++i) values[i].add(of_step[static_cast<StepValue>(i)]);
}

void StepBuckets::add(std::int64_t step, const StepValues& values) {
  if (buckets_.empty() || buckets_.back().steps == width_) {
    if (buckets_.size() == kMost) join_neighbours();
    buckets_.emplace_back().first_step = step;
  }
  buckets_.back().add(step, values);
}

void StepBuckets::join_neighbours() {
  for (std::size_t i = 0; i < kMost / 2; ++i) {
    Bucket joined = buckets_[2 * i];
    const Bucket& second = buckets_[2 * i + 1];
    joined.last_step = second.last_step;
    joined.steps += second.steps;
    for (std::size_t v = 0; v < joined.values.size(); ++v) joined.values[v].add(second.values[v]);
    buckets_[i] = joined;
  }
  buckets_.resize(kMost / 2);
  width_ *= 2;
}

}  // namespace sluice::cli
