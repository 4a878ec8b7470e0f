#pragma once
// MappedSource: blocks of whole pages that are contiguous in addresses and not in memory, so no
// memory is lost between blocks. Freed blocks stay mapped for the next request of their number of
// pages. When pages are short, the blocks that were freed first are unmapped, after the work that
// was issued before they were freed has ended.
//
// Blocks below one page come from a heap of their own, a range of addresses that grows and shrinks
// by pages at its end. Not installed.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "memory/free_runs.hpp"
#include "memory/page_memory.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload {

// Thread-safe. Calls of the driver run under its lock: a thread that needs no new pages waits while
// another maps or unmaps.
class MappedSource final : public MemorySource {
 public:
  // Takes `size_bytes`, rounded down to whole pages and at least one, and holds them until
  // destruction. Small blocks start at a multiple of `granule_bytes`, a power of two from 64 to
  // kPageBytes. Throws OutOfMemory for `tier` and CudaError.
  MappedSource(std::unique_ptr<PageMemory> memory, std::uint64_t size_bytes, Tier tier,
               std::size_t granule_bytes = 64);
  // Waits for the work that was issued.
  ~MappedSource() override;

  void* allocate(std::size_t size_bytes) override;
  void free(void* block, std::size_t size_bytes) noexcept override;
  // The source itself keeps freed blocks.
  bool wants_blocks_back() const override { return true; }
  // Whole pages from one page on.
  std::uint64_t block_bytes(std::uint64_t size_bytes) const override;
  // The rest of the last pages of blocks in use, and what is free between small blocks.
  std::uint64_t gap_bytes() const override;

 private:
  using Pages = std::vector<PageMemory::Page>;
  // A freed block that is still mapped.
  struct Cached {
    std::byte* begin = nullptr;
    Pages pages;
    std::uint64_t epoch = 0;
  };
  using CachedList = std::list<Cached>;

  void* allocate_pages(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  void* allocate_small(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  void free_pages(std::byte* block, std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  // Makes `count` pages free; throws OutOfMemory when blocks in use hold them.
  void make_free(std::uint64_t count, std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  std::byte* map_new(std::uint64_t count, Pages& pages) SLUICE_REQUIRES(mutex_);
  void unmap_oldest() SLUICE_REQUIRES(mutex_);
  void grow_heap(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  void shrink_heap() SLUICE_REQUIRES(mutex_);
  // Whole free pages at the end of the heap.
  std::uint64_t heap_tail_pages() const SLUICE_REQUIRES(mutex_);
  // Blocks until the work of an epoch has ended. Epochs divide the time at the marks.
  void wait_for(std::uint64_t epoch) SLUICE_REQUIRES(mutex_);
  void end_epoch() SLUICE_REQUIRES(mutex_);
  std::uint64_t rounding(std::uint64_t size_bytes) const;

  const std::unique_ptr<PageMemory> memory_;
  const std::uint64_t page_bytes_;
  const std::uint64_t page_count_;
  const Tier tier_;
  const std::size_t granule_bytes_;
  mutable Mutex mutex_;
  Pages free_ SLUICE_GUARDED_BY(mutex_);
  std::unordered_map<void*, Pages> live_ SLUICE_GUARDED_BY(mutex_);
  CachedList cached_ SLUICE_GUARDED_BY(mutex_);  // freed first comes first
  std::map<std::uint64_t, std::vector<CachedList::iterator>> cached_by_count_
      SLUICE_GUARDED_BY(mutex_);
  std::byte* heap_ SLUICE_GUARDED_BY(mutex_) = nullptr;  // addresses for all pages
  Pages heap_pages_ SLUICE_GUARDED_BY(mutex_);
  FreeRuns heap_runs_ SLUICE_GUARDED_BY(mutex_);
  // Marks of ended epochs, by number; an epoch without one has ended its work.
  std::deque<std::pair<std::uint64_t, std::unique_ptr<WorkMark>>> marks_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t epoch_ SLUICE_GUARDED_BY(mutex_) = 1;
  std::uint64_t freed_in_epoch_ SLUICE_GUARDED_BY(mutex_) = 0;  // pages
  // In the last pages of blocks in use.
  std::uint64_t rounding_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::offload
