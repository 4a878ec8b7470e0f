#pragma once
// StepBuckets: the values of any number of steps in bounded memory. Consecutive steps share a
// bucket, which has the mean and the range of each of their values. As steps are added,
// neighbouring buckets are joined, so that at most kMost exist.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice::cli {

enum class StepValue : std::size_t {
  loss,
  eval_loss,
  lr,
  tokens_per_second,
  seconds,
  compute_seconds,  // these seven, up to stall_update, add up to `seconds`
  commit_seconds,
  stall_h2d,
  stall_d2h,
  stall_read,
  stall_write,
  stall_update,
  h2d_bytes,
  d2h_bytes,
  read_bytes,
  written_bytes,
  count,
};

// The values of one step; NaN means absent.
class StepValues {
 public:
  StepValues() { values_.fill(std::numeric_limits<double>::quiet_NaN()); }
  double& operator[](StepValue value) { return values_[static_cast<std::size_t>(value)]; }
  double operator[](StepValue value) const { return values_[static_cast<std::size_t>(value)]; }

 private:
  std::array<double, static_cast<std::size_t>(StepValue::count)> values_;
};

struct ValueRange {
  double sum = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  std::uint64_t count = 0;

  // NaN when no value was added.
  double mean() const { return sum / static_cast<double>(count); }
  void add(double value);
  void add(const ValueRange& other);
};

// Thread-compatible: callers synchronise.
class StepBuckets {
 public:
  static constexpr std::size_t kMost = 800;  // about one for each column of a chart; even

  struct Bucket {
    std::int64_t first_step = 0;
    std::int64_t last_step = 0;
    std::uint64_t steps = 0;
    std::array<ValueRange, static_cast<std::size_t>(StepValue::count)> values;
    void add(std::int64_t step, const StepValues& of_step);
    const ValueRange& operator[](StepValue value) const {
      return values[static_cast<std::size_t>(value)];
    }
  };

  void add(std::int64_t step, const StepValues& values);
  const std::vector<Bucket>& all() const { return buckets_; }
  // Steps in each bucket; the last bucket may have fewer.
  std::uint64_t width() const { return width_; }

 private:
  void join_neighbours();

  std::vector<Bucket> buckets_;
  std::uint64_t width_ = 1;
};

}  // namespace sluice::cli
