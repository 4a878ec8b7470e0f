#include "sluice/offload/arena_source.hpp"

#include <bit>
#include <cassert>
#include <iterator>
#include <string>

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

}  // namespace

ArenaSource::ArenaSource(std::unique_ptr<MemorySource> backing, std::uint64_t size_bytes, Tier tier,
                         std::size_t granule_bytes)
    : backing_(std::move(backing)),
      size_bytes_(align_up(size_bytes, kPageBytes)),
      tier_(tier),
      granule_bytes_(granule_bytes),
      base_(take_all(*backing_, size_bytes_, tier)) {
  assert(std::has_single_bit(granule_bytes_) && granule_bytes_ >= 64 &&
         granule_bytes_ <= kPageBytes);
  MutexLock lock(mutex_);
  add_free(0, size_bytes_);
}

ArenaSource::~ArenaSource() {
  {
    MutexLock lock(mutex_);
    if (free_bytes_ != size_bytes_) {
      log(LogLevel::error, "an arena is destroyed while " +
                               std::to_string(size_bytes_ - free_bytes_) + " bytes are in use");
    }
  }
  if (base_ != nullptr) backing_->free(base_, size_bytes_);
}

void* ArenaSource::allocate(std::size_t size_bytes) {
  const bool small = size_bytes < kPageBytes;
  const std::uint64_t need = align_up(size_bytes, granule_bytes_);
  if (need == 0) return nullptr;
  MutexLock lock(mutex_);
  for (auto it = free_by_size_.lower_bound({need, 0}); it != free_by_size_.end(); ++it) {
    const auto [run_size, run_begin] = *it;
    const std::uint64_t run_end = run_begin + run_size;
    const std::uint64_t begin = small ? run_end - need : align_up(run_begin, kPageBytes);
    if (begin + need > run_end) continue;  // a large block would not start at a page
    remove_free(free_by_offset_.find(run_begin));
    add_free(run_begin, begin - run_begin);
    add_free(begin + need, run_end - (begin + need));
    return base_ + begin;
  }
  throw OutOfMemory(std::string(name_of(tier_)), need, largest_free(),
                    "a block in one piece (" + format_bytes(free_bytes_) +
                        " of the budget are free, the largest piece of them is too small)");
}

void ArenaSource::free(void* block, std::size_t size_bytes) noexcept {
  if (block == nullptr) return;
  std::uint64_t begin = static_cast<std::uint64_t>(static_cast<std::byte*>(block) - base_);
  std::uint64_t end = begin + align_up(size_bytes, granule_bytes_);
  assert(end <= size_bytes_);
  try {
    MutexLock lock(mutex_);
    const auto after = free_by_offset_.lower_bound(begin);
    const auto before = after == free_by_offset_.begin() ? free_by_offset_.end() : std::prev(after);
    assert(after == free_by_offset_.end() || after->first >= end);
    assert(before == free_by_offset_.end() || before->first + before->second <= begin);
    const bool joins_after = after != free_by_offset_.end() && after->first == end;
    const bool joins_before =
        before != free_by_offset_.end() && before->first + before->second == begin;
    if (joins_after) {
      end += after->second;
      remove_free(after);
    }
    if (joins_before) {
      begin = before->first;
      remove_free(before);
    }
    add_free(begin, end - begin);
  } catch (const std::exception& e) {  // no memory for the lists: the block stays in use
    log(LogLevel::error, std::string("an arena lost a block of ") + std::to_string(size_bytes) +
                             " bytes: " + e.what());
  }
}

ArenaUsage ArenaSource::usage() const {
  MutexLock lock(mutex_);
  return {size_bytes_, free_bytes_, largest_free()};
}

std::uint64_t ArenaSource::gap_bytes() const {
  const ArenaUsage now = usage();
  return now.free_bytes - now.largest_free_bytes;
}

std::uint64_t ArenaSource::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

void ArenaSource::add_free(std::uint64_t offset, std::uint64_t size) {
  if (size == 0) return;
  free_by_size_.emplace(size, offset);
  free_by_offset_.emplace(offset, size);
  free_bytes_ += size;
}

void ArenaSource::remove_free(Runs::iterator run) {
  free_bytes_ -= run->second;
  free_by_size_.erase({run->second, run->first});
  free_by_offset_.erase(run);
}

}  // namespace sluice::offload
