#pragma once
// Aligned staging buffers for bytes that cannot move directly between the caller's memory and the
// file.

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace sluice::nvme {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

// Allocates at most `max_count` buffers, each on first need, and reuses returned ones. Owns the
// returned buffers only; AlignedMemory frees itself. Confined to thread: the engine's.
class BouncePool {
 public:
  // Satisfies the memory alignment of every file whose memory_alignment() is no larger.
  static constexpr std::size_t kAlignment = 4096;

  BouncePool(std::size_t buffer_bytes, std::size_t max_count);

  // A buffer, or null while all are in use. Throws OutOfMemory when memory for even the first
  // buffer is missing.
  AlignedMemory try_take();
  void give_back(AlignedMemory buffer);

 private:
  const std::size_t buffer_bytes_;  // a multiple of kAlignment
  const std::size_t max_count_;
  std::size_t made_ = 0;
  std::vector<AlignedMemory> free_;
};

}  // namespace sluice::nvme
