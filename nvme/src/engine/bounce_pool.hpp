#pragma once
// Aligned staging buffers for what cannot go directly between the caller's memory and the file.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace sluice::nvme {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// Makes buffers when first needed, keeps them, at most `max_count`.
// Confined to thread: the engine's.
class BouncePool {
 public:
  // Satisfies the memory alignment of every file whose memory_alignment() is no larger.
  static constexpr std::size_t kAlignment = 4096;

  BouncePool(std::size_t buffer_bytes, std::size_t max_count);

  // A buffer, or null when all are out: wait until one comes back. Throws OutOfMemory when memory
  // for the only buffer cannot be had.
  AlignedMemory try_take();
  void give_back(AlignedMemory buffer);

 private:
  const std::size_t buffer_bytes_;  // a multiple of kAlignment
  const std::size_t max_count_;
  std::size_t made_ = 0;
  std::vector<AlignedMemory> free_;
};

}  // namespace sluice::nvme
