#include "sluice/offload/memory_pool.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {

namespace {
constexpr std::uint64_t kLineBytes = 64;  // a cache line, and the widest vector
// More than any memory has; what is not larger can be rounded up.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 63U;
}  // namespace

std::uint64_t pool_bytes(std::uint64_t size_bytes) {
  return align_up(size_bytes, size_bytes >= kPageBytes ? kPageBytes : kLineBytes);
}

MemoryPool::MemoryPool(Tier tier, std::uint64_t limit_bytes, std::unique_ptr<MemorySource> source,
                       MemoryPool* parent)
    : tier_(tier), source_(std::move(source)), parent_(parent) {
  SLUICE_CHECK(source_ != nullptr, "a memory pool needs a source");
  MutexLock lock(mutex_);
  usage_.limit_bytes = limit_bytes;
}

MemoryPool::~MemoryPool() {
  MutexLock lock(mutex_);
  trim_locked();
  if (usage_.live_bytes != 0) {
    log(LogLevel::error, "the memory pool of tier " + std::string(name_of(tier_)) +
                             " is destroyed while " + std::to_string(usage_.live_bytes) +
                             " bytes are in use");
  }
  assert(usage_.live_bytes == 0);
}

std::span<std::byte> Buffer::bytes() const {
  SLUICE_CHECK(pool_ == nullptr || tier() != Tier::device,
               "a buffer on tier device is not host memory: use device_span()");
  return {static_cast<std::byte*>(block_), size_bytes_};
}

DeviceSpan Buffer::device_span() const {
  SLUICE_CHECK(pool_ == nullptr || tier() == Tier::device,
               "a buffer on tier " + std::string(name_of(tier())) + " is not device memory");
  return DeviceSpan(block_, size_bytes_);
}

Buffer MemoryPool::allocate(std::size_t size_bytes, const std::string& what_for) {
  return Buffer(this, allocate_raw(size_bytes, what_for.c_str()), size_bytes);
}

void* MemoryPool::allocate_raw(std::size_t size_bytes, const char* what_for) {
  if (size_bytes > kMostBytes) {
    const PoolUsage now = usage();
    throw OutOfMemory(std::string(name_of(tier_)), size_bytes,
                      std::min(now.limit_bytes - now.live_bytes, kMostBytes), what_for);
  }
  const std::uint64_t asked_bytes = pool_bytes(size_bytes);
  if (asked_bytes == 0) return nullptr;
  while (make_room_) {
    try {
      return try_allocate(asked_bytes, what_for);
    } catch (const OutOfMemory&) {
      if (!make_room_()) break;
    }
  }
  return try_allocate(asked_bytes, what_for);
}

void* MemoryPool::try_allocate(std::uint64_t size_bytes, const char* what_for) {
  const std::uint64_t need_bytes = source_->block_bytes(size_bytes);
  {
    MutexLock lock(mutex_);
    if (void* cached = take_cached(size_bytes)) return cached;
    if (const auto shortage = reserve(need_bytes)) {
      const bool own = shortage->pool == this;
      throw OutOfMemory(std::string(name_of(shortage->pool->tier_)), need_bytes,
                        shortage->available_bytes,
                        own ? what_for
                            : std::string(what_for) + " (tier " + std::string(name_of(tier_)) +
                                  " counts in this budget)");
    }
  }
  // Outside the lock: locking or registering pages takes long, and others may continue with cached
  // blocks.
  void* block = nullptr;
  try {
    block = allocate_from_source(size_bytes);
  } catch (...) {
    unreserve(need_bytes);
    throw;
  }
  if (block == nullptr) {
    unreserve(need_bytes);
    throw OutOfMemory(std::string(name_of(tier_)), need_bytes, 0,
                      std::string(what_for) +
                          " (the budget has room, but the system has no more memory: lower the "
                          "budget or free memory)");
  }
  return block;
}

void MemoryPool::free_raw(void* block, std::size_t size_bytes) noexcept {
  if (block == nullptr) return;
  const std::uint64_t asked_bytes = pool_bytes(size_bytes);
  const std::uint64_t held_bytes = source_->block_bytes(asked_bytes);
  MutexLock lock(mutex_);
  assert(usage_.live_bytes >= held_bytes);
  usage_.live_bytes -= held_bytes;
  if (source_->wants_blocks_back()) {
    give_back(block, asked_bytes);
    return;
  }
  try {
    free_blocks_[asked_bytes].push_back(block);
  } catch (...) {  // no memory for the list: then the block is not cached
    give_back(block, asked_bytes);
  }
}

PoolUsage MemoryPool::usage() const {
  MutexLock lock(mutex_);
  PoolUsage now = usage_;
  now.gap_bytes = source_->gap_bytes();
  return now;
}

void MemoryPool::reset_peak() {
  MutexLock lock(mutex_);
  usage_.peak_live_bytes = usage_.live_bytes;
}

void MemoryPool::trim() {
  MutexLock lock(mutex_);
  trim_locked();
}

void MemoryPool::trim_locked() {
  for (const auto& [size_bytes, blocks] : free_blocks_) {
    for (void* block : blocks) give_back(block, size_bytes);
  }
  free_blocks_.clear();
}

void* MemoryPool::take_cached(std::uint64_t size_bytes) {
  const auto found = free_blocks_.find(size_bytes);
  if (found == free_blocks_.end() || found->second.empty()) return nullptr;
  void* block = found->second.back();
  found->second.pop_back();
  usage_.live_bytes += size_bytes;
  usage_.peak_live_bytes = std::max(usage_.peak_live_bytes, usage_.live_bytes);
  return block;
}

void* MemoryPool::allocate_from_source(std::uint64_t size_bytes) {
  try {
    if (void* block = source_->allocate(size_bytes)) return block;
  } catch (const OutOfMemory&) {
    // A limit of the source; cached blocks may be what fills it. The second try reports.
  }
  trim();
  return source_->allocate(size_bytes);
}

std::optional<MemoryPool::Shortage> MemoryPool::reserve(std::uint64_t size_bytes) {
  if (const std::uint64_t available = usage_.limit_bytes - usage_.live_bytes;
      size_bytes > available) {
    return Shortage{this, available};
  }
  while (size_bytes > usage_.limit_bytes - usage_.held_bytes) {
    give_back_cached(size_bytes - (usage_.limit_bytes - usage_.held_bytes));
  }
  if (parent_ != nullptr) {
    while (const auto shortage = parent_->reserve_for_child(size_bytes)) {
      if (usage_.held_bytes == usage_.live_bytes) return shortage;
      give_back_cached(size_bytes - std::min(size_bytes, shortage->available_bytes));
    }
  }
  usage_.held_bytes += size_bytes;
  usage_.live_bytes += size_bytes;
  usage_.peak_live_bytes = std::max(usage_.peak_live_bytes, usage_.live_bytes);
  return std::nullopt;
}

std::optional<MemoryPool::Shortage> MemoryPool::reserve_for_child(std::uint64_t size_bytes) {
  MutexLock lock(mutex_);
  return reserve(size_bytes);
}

void MemoryPool::unreserve(std::uint64_t size_bytes) noexcept {
  MutexLock lock(mutex_);
  usage_.live_bytes -= size_bytes;
  usage_.held_bytes -= size_bytes;
  if (parent_ != nullptr) parent_->unreserve(size_bytes);
}

void MemoryPool::give_back(void* block, std::uint64_t size_bytes) noexcept {
  source_->free(block, size_bytes);
  const std::uint64_t held_bytes = source_->block_bytes(size_bytes);
  usage_.held_bytes -= held_bytes;
  if (parent_ != nullptr) parent_->unreserve(held_bytes);
}

void MemoryPool::give_back_cached(std::uint64_t missing_bytes) {
  auto chosen = free_blocks_.end();
  for (auto it = free_blocks_.begin(); it != free_blocks_.end(); ++it) {
    if (it->second.empty()) continue;
    chosen = it;
    if (it->first >= missing_bytes) break;
  }
  assert(chosen != free_blocks_.end());
  give_back(chosen->second.back(), chosen->first);
  chosen->second.pop_back();
  if (chosen->second.empty()) free_blocks_.erase(chosen);
}

}  // namespace sluice::offload
