#pragma once
// LastValues: the last values of a long run. Thread-compatible: callers synchronise.

#include <cstddef>
#include <vector>

namespace sluice::train {

// Keeps the last `capacity` values, in no order. All memory is taken at the start: values that stay
// among short-lived ones would split a heap into holes, and a long run would grow.
template <typename Value>
class LastValues {
 public:
  explicit LastValues(std::size_t capacity) { values_.reserve(capacity); }

  void add(const Value& value) {
    if (values_.size() < values_.capacity()) {
      values_.push_back(value);
      return;
    }
    values_[oldest_] = value;
    oldest_ = (oldest_ + 1) % values_.size();
  }

  const std::vector<Value>& values() const { return values_; }

 private:
  std::vector<Value> values_;
  std::size_t oldest_ = 0;
};

}  // namespace sluice::train
