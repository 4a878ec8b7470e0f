#pragma once
// FixedQueue: a first-in first-out queue of fixed capacity. It allocates in its constructor only.
// Thread-compatible: callers synchronise.

#include <cassert>
#include <cstddef>
#include <vector>

namespace sluice::nvme {

template <typename T>
class FixedQueue {
 public:
  explicit FixedQueue(std::size_t capacity) : items_(capacity) {}

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  // The item that is `index` places behind the front.
  const T& at(std::size_t index) const {
    assert(index < count_);
    return items_[(front_ + index) % items_.size()];
  }
  void push(const T& item) {
    assert(count_ < items_.size());
    items_[(front_ + count_) % items_.size()] = item;
    ++count_;
  }
  T pop() {
    assert(count_ > 0);
    const T item = items_[front_];
    front_ = (front_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
};

}  // namespace sluice::nvme
