#include "sluice/offload/arena_source.hpp"

#include <bit>
#include <cassert>
#include <optional>
#include <string>

#include "memory/free_runs.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {

namespace {

std::byte* take_all(MemorySource& backing, std::uint64_t size_bytes, Tier tier) {
  if (size_bytes == 0) return nullptr;
  void* block = backing.allocate(size_bytes);
  if (block == nullptr) throw OutOfMemory(std::string(name_of(tier)), size_bytes, 0, "an arena");
  return static_cast<std::byte*>(block);
}

std::unique_ptr<MemorySource> checked(std::unique_ptr<MemorySource> backing,
                                      std::size_t granule_bytes) {
  SLUICE_CHECK(backing != nullptr, "an arena needs a source of memory");
  SLUICE_CHECK(
      std::has_single_bit(granule_bytes) && granule_bytes >= 64 && granule_bytes <= kPageBytes,
      "the granule of an arena is " + std::to_string(granule_bytes) +
          " bytes; it must be a power of two from 64 to " + std::to_string(kPageBytes));
  return backing;
}

}  // namespace

ArenaSource::ArenaSource(std::unique_ptr<MemorySource> backing, std::uint64_t size_bytes, Tier tier,
                         std::size_t granule_bytes)
    : backing_(checked(std::move(backing), granule_bytes)),
      size_bytes_(align_up(size_bytes, kPageBytes)),
      tier_(tier),
      granule_bytes_(granule_bytes),
      base_(take_all(*backing_, size_bytes_, tier)),
      runs_(std::make_unique<FreeRuns>()) {
  MutexLock lock(mutex_);
  if (size_bytes_ > 0) runs_->give({0, size_bytes_});
}

ArenaSource::~ArenaSource() {
  {
    MutexLock lock(mutex_);
    if (runs_->total() != size_bytes_) {
      log(LogLevel::error, "an arena is destroyed while " +
                               std::to_string(size_bytes_ - runs_->total()) + " bytes are in use");
    }
  }
  if (base_ != nullptr) backing_->free(base_, size_bytes_);
}

void* ArenaSource::allocate(std::size_t size_bytes) {
  const std::uint64_t need = align_up(size_bytes, granule_bytes_);
  if (need == 0) return nullptr;
  MutexLock lock(mutex_);
  if (const std::optional<std::uint64_t> begin = runs_->take(need)) return base_ + *begin;
  throw OutOfMemory(std::string(name_of(tier_)), need, runs_->largest(),
                    "a block in one piece (" + format_bytes(runs_->total()) +
                        " of the budget are free, the largest piece of them is too small)");
}

void ArenaSource::free(void* block, std::size_t size_bytes) noexcept {
  if (block == nullptr) return;
  const auto begin = static_cast<std::uint64_t>(static_cast<std::byte*>(block) - base_);
  const std::uint64_t end = begin + align_up(size_bytes, granule_bytes_);
  assert(end <= size_bytes_);
  try {
    MutexLock lock(mutex_);
    runs_->give({begin, end});
  } catch (const std::exception& e) {  // no memory for the lists: the block stays in use
    log(LogLevel::error, std::string("an arena lost a block of ") + std::to_string(size_bytes) +
                             " bytes: " + e.what());
  }
}

ArenaUsage ArenaSource::usage() const {
  MutexLock lock(mutex_);
  return {size_bytes_, runs_->total(), runs_->largest()};
}

std::uint64_t ArenaSource::gap_bytes() const {
  const ArenaUsage now = usage();
  return now.free_bytes - now.largest_free_bytes;
}

}  // namespace sluice::offload
