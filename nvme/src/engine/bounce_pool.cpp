#include "engine/bounce_pool.hpp"

#include <utility>

#include "sluice/base/error.hpp"

namespace sluice::nvme {

BouncePool::BouncePool(std::size_t buffer_bytes, std::size_t max_count)
    : buffer_bytes_(buffer_bytes), max_count_(max_count) {
  free_.reserve(max_count);
}

AlignedMemory BouncePool::try_take() {
  if (!free_.empty()) {
    AlignedMemory buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  if (made_ == max_count_) return nullptr;
  AlignedMemory buffer(static_cast<std::byte*>(std::aligned_alloc(kAlignment, buffer_bytes_)));
  if (buffer) {
    ++made_;
  } else if (made_ == 0) {
    throw OutOfMemory("host", buffer_bytes_, 0, "bounce buffer for unaligned I/O");
  }
  return buffer;
}

void BouncePool::give_back(AlignedMemory buffer) {
  free_.push_back(std::move(buffer));
}

}  // namespace sluice::nvme
