#pragma once
// MemoryPool: the memory of one tier under a budget that cannot be exceeded. Freed blocks are kept
// for the next request of the same size (a training step asks for the same sizes again and again)
// and given back to the system when the budget needs their room, so what the pool holds is never
// above its limit.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::offload {

inline constexpr std::uint64_t kUnlimited = ~0ULL;
// Blocks from this size on start at a page, so that direct I/O needs no bounce buffer; all start at
// 64 bytes.
inline constexpr std::size_t kPageBytes = 4096;

// What a request of `size_bytes` takes from a pool: rounded up to 64 bytes, from kPageBytes on to
// pages. The planner counts with this very function.
std::uint64_t pool_bytes(std::uint64_t size_bytes);

// Where a pool gets its blocks: the system's memory, page-locked memory, a GPU's. `size_bytes` is a
// value of pool_bytes(). Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns null when the system has no more.
  virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void free(void* block, std::size_t size_bytes) noexcept = 0;
  // Whether blocks that are not used are better given back at once than kept for reuse.
  virtual bool wants_blocks_back() const { return false; }
  // Free, but not in one piece with the largest part of it.
  virtual std::uint64_t gap_bytes() const { return 0; }
};
// Pages from mmap (blocks below 64 KiB from malloc); freed mappings leave the resident set at once.
std::unique_ptr<MemorySource> make_host_source();
// The same, locked into memory (mlock). allocate() throws OutOfMemory that names RLIMIT_MEMLOCK,
// its value and what to change when the limit does not allow it.
std::unique_ptr<MemorySource> make_pinned_source();

struct PoolUsage {
  std::uint64_t limit_bytes = 0;      // kUnlimited: none
  std::uint64_t live_bytes = 0;       // in use now
  std::uint64_t peak_live_bytes = 0;  // since construction or the last reset_peak()
  std::uint64_t held_bytes = 0;       // in use or kept for reuse; never above the limit
  std::uint64_t gap_bytes = 0;        // free, but not in one piece with the largest part of it
};

class Buffer;

// Thread-safe. Outlives its buffers: the destructor checks that.
class MemoryPool {
 public:
  // A pool with a `parent` also counts against the parent's limit (pinned memory against the host
  // budget): what the child holds, in use or kept, is live and held in the parent, and leaves it
  // when the child gives it back to the system. A child that needs room makes the parent give back
  // what it keeps; a parent does not take what a child keeps (trim the child). The parent outlives
  // the child.
  MemoryPool(Tier tier, std::uint64_t limit_bytes, std::unique_ptr<MemorySource> source,
             MemoryPool* parent = nullptr);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  Tier tier() const { return tier_; }
  // An uninitialised block; `what_for` names it in the error. Throws OutOfMemory with requested and
  // available bytes when the budget (also after giving back what is kept for reuse) or the system
  // has no room; tier() of the error is the tier whose budget is short, the parent's perhaps. A
  // size of 0 gives an empty buffer.
  Buffer allocate(std::size_t size_bytes, const std::string& what_for);
  // The raw form, for allocator hooks. `size_bytes` of free_raw is that of allocate_raw.
  void* allocate_raw(std::size_t size_bytes, const char* what_for);
  void free_raw(void* block, std::size_t size_bytes) noexcept;

  PoolUsage usage() const;
  // Starts a new peak from what is live now.
  void reset_peak();
  // Gives back everything kept for reuse to the system.
  void trim();

 private:
  // The pool that is short, and what it could still give.
  struct Shortage {
    const MemoryPool* pool;
    std::uint64_t available_bytes;
  };

  void* take_kept(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  // Outside the lock; null when the system has no more, also after a trim.
  void* allocate_from_source(std::uint64_t size_bytes) SLUICE_EXCLUDES(mutex_);
  // Counts `size_bytes` as live here and in the parents, giving back kept blocks where that makes
  // room. Locks go from child to parent, never back.
  std::optional<Shortage> reserve(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  std::optional<Shortage> reserve_for_child(std::uint64_t size_bytes) SLUICE_EXCLUDES(mutex_);
  void unreserve(std::uint64_t size_bytes) noexcept SLUICE_EXCLUDES(mutex_);
  void give_back(void* block, std::uint64_t size_bytes) noexcept SLUICE_REQUIRES(mutex_);
  // Gives one kept block back: the smallest that frees `missing_bytes`, else the largest.
  void give_back_kept(std::uint64_t missing_bytes) SLUICE_REQUIRES(mutex_);
  void trim_locked() SLUICE_REQUIRES(mutex_);

  const Tier tier_;
  const std::unique_ptr<MemorySource> source_;
  MemoryPool* const parent_;
  mutable Mutex mutex_;
  PoolUsage usage_ SLUICE_GUARDED_BY(mutex_);
  // Free blocks by exact size; the blocks of one size are interchangeable. A list that a reuse has
  // emptied stays, so that a step that repeats itself allocates nothing.
  std::map<std::uint64_t, std::vector<void*>> free_blocks_ SLUICE_GUARDED_BY(mutex_);
};

// The owner of one block of a pool; move-only, gives the block back on destruction.
// Thread-compatible: callers synchronise.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryPool* pool, void* block, std::size_t size_bytes)
      : pool_(pool), block_(block), size_bytes_(size_bytes) {}
  Buffer(Buffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)),
        block_(std::exchange(other.block_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      pool_ = std::exchange(other.pool_, nullptr);
      block_ = std::exchange(other.block_, nullptr);
      size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  explicit operator bool() const { return block_ != nullptr; }
  std::size_t size_bytes() const { return size_bytes_; }
  // The block of a pool in host memory. Throws InvalidArgument on Tier::device, also where the CPU
  // could address it: Device::host_view() gives that.
  std::span<std::byte> bytes() const;
  std::byte* data() const { return bytes().data(); }
  // The block of a pool on Tier::device. Throws InvalidArgument on another tier.
  DeviceSpan device_span() const;
  // The tier of the pool; Tier::host without a pool.
  Tier tier() const { return pool_ == nullptr ? Tier::host : pool_->tier(); }
  void reset() noexcept {
    if (block_ != nullptr) pool_->free_raw(block_, size_bytes_);
    block_ = nullptr;
    size_bytes_ = 0;
  }

 private:
  MemoryPool* pool_ = nullptr;
  void* block_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace sluice::offload
