#pragma once
// ArenaSource: cuts the blocks of a pool from one large block of another source. It serves memory
// whose allocations are expensive: a GPU's, where allocating and freeing wait for all running work,
// and host memory that is registered with a GPU. After construction it takes nothing from the
// system.
//
// Best fit; adjacent free runs are merged. Small blocks (below kPageBytes) are cut from the end of
// a free run, large blocks from its begin, so that the two sizes mix less.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

class FreeRuns;

struct ArenaUsage {
  std::uint64_t size_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;  // largest block available; the rest is fragmented
};

// Thread-safe.
class ArenaSource final : public MemorySource {
 public:
  // Takes `size_bytes`, rounded up to whole pages, from `backing` and holds them until destruction.
  // Blocks start at a multiple of `granule_bytes` (a power of two from 64 to kPageBytes) and are a
  // whole number of granules long. Throws InvalidArgument without `backing` and for another
  // granule, OutOfMemory for `tier` when `backing` has no such block, and passes on the exceptions
  // of `backing`.
  ArenaSource(std::unique_ptr<MemorySource> backing, std::uint64_t size_bytes, Tier tier,
              std::size_t granule_bytes = 64);
  ~ArenaSource() override;

  // Throws OutOfMemory when no single free run is large enough, even if several together are. The
  // error's available bytes are the largest run.
  void* allocate(std::size_t size_bytes) override;
  void free(void* block, std::size_t size_bytes) noexcept override;

  // A cached free block would split the free runs around it.
  bool wants_blocks_back() const override { return true; }
  std::uint64_t gap_bytes() const override;

  ArenaUsage usage() const;

 private:
  const std::unique_ptr<MemorySource> backing_;
  const std::uint64_t size_bytes_;
  const Tier tier_;
  const std::size_t granule_bytes_;
  std::byte* const base_;
  mutable Mutex mutex_;
  const std::unique_ptr<FreeRuns> runs_;  // what it points at is guarded by mutex_
};

}  // namespace sluice::offload
