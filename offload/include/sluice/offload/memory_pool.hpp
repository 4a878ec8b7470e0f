#pragma once
// MemoryPool: the memory of one tier under a hard budget. The pool caches freed blocks for the next
// request of the same size, because a training step repeats its sizes. When the budget needs the
// room, cached blocks go back to the system; so the pool never holds more than its limit.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/bytes.hpp"  // kPageBytes
#include "sluice/base/error.hpp"  // what the calls throw
#include "sluice/base/mutex.hpp"
#include "sluice/offload/device_span.hpp"
#include "sluice/offload/tier.hpp"

namespace sluice::offload {

inline constexpr std::uint64_t kUnlimited = ~0ULL;
// Blocks of at least this size start at a page, so direct I/O needs no bounce buffer. Every block
// starts at a multiple of 64 bytes.
using sluice::kPageBytes;

// The bytes that a request of `size_bytes` takes from a pool: rounded up to 64 bytes, and to whole
// pages from kPageBytes on. The planner counts with this function.
std::uint64_t pool_bytes(std::uint64_t size_bytes);

// The source of a pool's blocks: system memory, page-locked memory, or GPU memory. `size_bytes` is
// a value of pool_bytes(). Thread-safe.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  // Returns null when the system has no more.
  virtual void* allocate(std::size_t size_bytes) = 0;
  virtual void free(void* block, std::size_t size_bytes) noexcept = 0;
  // Whether the pool should give back freed blocks at once instead of caching them.
  virtual bool wants_blocks_back() const { return false; }
  // Bytes of the memory that a block of `size_bytes` takes, at least `size_bytes`; the pool counts
  // these. A source that takes more than was asked for keeps freed blocks itself.
  virtual std::uint64_t block_bytes(std::uint64_t size_bytes) const { return size_bytes; }
  // Bytes that no larger block can have: free ones outside the largest free run, and the unused
  // ends of blocks.
  virtual std::uint64_t gap_bytes() const { return 0; }
};
// Whether a forked child has the memory, as it is at the fork. Where it has, this process copies
// each page that it writes to while the child lives, so the two may take twice the memory. Where it
// has not, a child that uses the memory is killed (SIGSEGV).
enum class InChildren { present, absent };
// Pages from mmap (blocks below 64 KiB from malloc, which children have); freed mappings leave the
// resident set at once.
std::unique_ptr<MemorySource> make_host_source(InChildren in_children = InChildren::present);
// Like make_host_source(), but no two blocks share a page, so that each can be registered with a
// GPU. Absent in children: a fork copies registered pages at once.
std::unique_ptr<MemorySource> make_page_source();
// Like make_host_source(), but locked into memory (mlock), and absent in children. When
// RLIMIT_MEMLOCK is too low, allocate() throws an OutOfMemory that names the limit, its value and
// what to change.
std::unique_ptr<MemorySource> make_pinned_source();

struct PoolUsage {
  std::uint64_t limit_bytes = 0;      // kUnlimited: none
  std::uint64_t live_bytes = 0;       // in use now
  std::uint64_t peak_live_bytes = 0;  // since construction or the last reset_peak()
  std::uint64_t held_bytes = 0;       // in use or cached; never above the limit
  std::uint64_t gap_bytes = 0;        // as MemorySource::gap_bytes()
};

class Buffer;

// Thread-safe. Outlives its buffers: else the destructor logs an error, and the end of such a
// buffer is undefined.
class MemoryPool {
 public:
  // A pool with a `parent` also counts against the parent's limit (pinned memory counts against the
  // host budget). Bytes that the child holds, in use or cached, are live and held in the parent
  // until the child gives them back to the system. A child that needs room makes the parent give
  // back its cached blocks; a parent never takes a child's cached blocks (trim the child). The
  // parent outlives the child. Throws InvalidArgument without a source.
  MemoryPool(Tier tier, std::uint64_t limit_bytes, std::unique_ptr<MemorySource> source,
             MemoryPool* parent = nullptr);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  Tier tier() const { return tier_; }
  // An uninitialised block; `what_for` names it in the error. Throws OutOfMemory, with requested
  // and available bytes, when the budget has no room even after giving back cached blocks, or when
  // the system has none. The error's tier() is the tier whose budget is short: this pool's or the
  // parent's. A size of 0 gives an empty buffer.
  Buffer allocate(std::size_t size_bytes, const std::string& what_for);
  // The raw form, for allocator hooks; a size of 0 gives null. `what_for` is not null. `size_bytes`
  // of free_raw is that of allocate_raw.
  void* allocate_raw(std::size_t size_bytes, const char* what_for);
  void free_raw(void* block, std::size_t size_bytes) noexcept;

  PoolUsage usage() const;
  // Starts a new peak from what is live now.
  void reset_peak();
  // Gives all cached blocks back to the system.
  void trim();
  // `make_room` is called where the pool has no room for a block, on the thread that asks for it
  // and without a lock. It frees blocks of this pool and returns true; then the pool tries again.
  // False: the pool throws OutOfMemory. Empty: as if it returned false. Set it while no other
  // thread allocates.
  void set_make_room(std::function<bool()> make_room) { make_room_ = std::move(make_room); }

 private:
  // The pool whose budget is short, and the bytes that it has left.
  struct Shortage {
    const MemoryPool* pool;
    std::uint64_t available_bytes;
  };

  void* try_allocate(std::uint64_t size_bytes, const char* what_for) SLUICE_EXCLUDES(mutex_);
  void* take_cached(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  // Outside the lock; null when the system has no more, even after a trim.
  void* allocate_from_source(std::uint64_t size_bytes) SLUICE_EXCLUDES(mutex_);
  // Counts `size_bytes` as live here and in the parents; gives back cached blocks to make room.
  // Locks are taken from child to parent, never the other way.
  std::optional<Shortage> reserve(std::uint64_t size_bytes) SLUICE_REQUIRES(mutex_);
  std::optional<Shortage> reserve_for_child(std::uint64_t size_bytes) SLUICE_EXCLUDES(mutex_);
  void unreserve(std::uint64_t size_bytes) noexcept SLUICE_EXCLUDES(mutex_);
  void give_back(void* block, std::uint64_t size_bytes) noexcept SLUICE_REQUIRES(mutex_);
  // Gives back one cached block: the smallest that frees `missing_bytes`, else the largest.
  void give_back_cached(std::uint64_t missing_bytes) SLUICE_REQUIRES(mutex_);
  void trim_locked() SLUICE_REQUIRES(mutex_);

  const Tier tier_;
  const std::unique_ptr<MemorySource> source_;
  MemoryPool* const parent_;
  std::function<bool()> make_room_;
  mutable Mutex mutex_;
  PoolUsage usage_ SLUICE_GUARDED_BY(mutex_);
  // Cached blocks by exact size; blocks of one size are interchangeable. An emptied list stays in
  // the map, so a step that repeats its sizes allocates nothing.
  std::map<std::uint64_t, std::vector<void*>> free_blocks_ SLUICE_GUARDED_BY(mutex_);
};

// The owner of one block of a pool. Move-only; the destructor gives the block back.
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
  // The block, in host memory. Throws InvalidArgument on Tier::device, even on a device that is
  // host_addressable(): use device_span() and Device::host_view() there.
  std::span<std::byte> bytes() const;
  std::byte* data() const { return bytes().data(); }
  // The block, in device memory. Throws InvalidArgument on any tier but Tier::device.
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
