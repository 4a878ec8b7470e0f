#include "memory/mapped_source.hpp"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload {

namespace {

// A mark costs an event of the GPU, and an older mark ends earlier: some for each time that the
// memory is filled anew.
constexpr std::uint64_t kEpochsOfMemory = 64;

}  // namespace

MappedSource::MappedSource(std::unique_ptr<PageMemory> memory, std::uint64_t size_bytes, Tier tier,
                           std::size_t granule_bytes)
    : memory_(std::move(memory)),
      page_bytes_(memory_->page_bytes()),
      page_count_(std::max<std::uint64_t>(1, size_bytes / page_bytes_)),
      tier_(tier),
      granule_bytes_(granule_bytes) {
  MutexLock lock(mutex_);
  free_.reserve(page_count_);
  try {
    for (std::uint64_t i = 0; i < page_count_; ++i) free_.push_back(memory_->create());
    heap_ = memory_->reserve(page_count_ * page_bytes_);
  } catch (...) {
    for (const PageMemory::Page page : free_) memory_->release(page);
    throw;
  }
}

MappedSource::~MappedSource() {
  MutexLock lock(mutex_);
  try {
    end_epoch();
    wait_for(epoch_ - 1);
  } catch (const std::exception& e) {  // a broken device: nothing runs on it
    log(LogLevel::error, std::string("the end of a device's memory: ") + e.what());
  }
  const auto drop = [&](std::byte* begin, const Pages& pages) {
    memory_->unmap(begin, pages.size() * page_bytes_);
    for (const PageMemory::Page page : pages) memory_->release(page);
  };
  if (!live_.empty() || heap_runs_.total() != heap_pages_.size() * page_bytes_)
    log(LogLevel::error, "a device's memory is destroyed while blocks are in use");
  for (const auto& [block, pages] : live_) {
    drop(static_cast<std::byte*>(block), pages);
    memory_->unreserve(static_cast<std::byte*>(block), pages.size() * page_bytes_);
  }
  for (const Cached& block : cached_) {
    drop(block.begin, block.pages);
    memory_->unreserve(block.begin, block.pages.size() * page_bytes_);
  }
  if (!heap_pages_.empty()) drop(heap_, heap_pages_);
  memory_->unreserve(heap_, page_count_ * page_bytes_);
  for (const PageMemory::Page page : free_) memory_->release(page);
}

std::uint64_t MappedSource::block_bytes(std::uint64_t size_bytes) const {
  return size_bytes < page_bytes_ ? size_bytes : align_up(size_bytes, page_bytes_);
}

std::uint64_t MappedSource::rounding(std::uint64_t size_bytes) const {
  return block_bytes(size_bytes) - size_bytes;
}

void* MappedSource::allocate(std::size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  MutexLock lock(mutex_);
  return size_bytes < page_bytes_ ? allocate_small(size_bytes) : allocate_pages(size_bytes);
}

void* MappedSource::allocate_pages(std::uint64_t size_bytes) {
  const std::uint64_t count = ceil_div(size_bytes, page_bytes_);
  Pages pages;
  std::byte* block = nullptr;
  const auto found = cached_by_count_.find(count);
  if (found != cached_by_count_.end() && !found->second.empty()) {
    // The one that was freed last: the others' work is nearer to its end.
    const CachedList::iterator last = found->second.back();
    found->second.pop_back();
    block = last->begin;
    pages = std::move(last->pages);
    cached_.erase(last);
  } else {
    make_free(count, size_bytes);
    block = map_new(count, pages);
  }
  live_.emplace(block, std::move(pages));
  rounding_bytes_ += rounding(size_bytes);
  return block;
}

std::byte* MappedSource::map_new(std::uint64_t count, Pages& pages) {
  const std::uint64_t size_bytes = count * page_bytes_;
  std::byte* const begin = memory_->reserve(size_bytes);
  pages.assign(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  try {
    memory_->map(begin, pages);
  } catch (...) {
    memory_->unreserve(begin, size_bytes);
    throw;
  }
  free_.resize(free_.size() - count);
  return begin;
}

void MappedSource::make_free(std::uint64_t count, std::uint64_t size_bytes) {
  std::uint64_t within_reach = free_.size() + heap_tail_pages();
  for (const Cached& block : cached_) within_reach += block.pages.size();
  if (within_reach < count) {
    throw OutOfMemory(std::string(name_of(tier_)), size_bytes, within_reach * page_bytes_,
                      "a block of whole pages (" + format_bytes(heap_pages_.size() * page_bytes_) +
                          " of the budget hold small blocks)");
  }
  while (free_.size() < count && !cached_.empty()) unmap_oldest();
  if (free_.size() < count) shrink_heap();
}

void MappedSource::unmap_oldest() {
  wait_for(cached_.front().epoch);
  Cached& block = cached_.front();
  const std::uint64_t size_bytes = block.pages.size() * page_bytes_;
  memory_->unmap(block.begin, size_bytes);
  memory_->unreserve(block.begin, size_bytes);
  free_.insert(free_.end(), block.pages.begin(), block.pages.end());
  auto& same = cached_by_count_[block.pages.size()];
  same.erase(std::find(same.begin(), same.end(), cached_.begin()));
  cached_.pop_front();
}

void* MappedSource::allocate_small(std::uint64_t size_bytes) {
  const std::uint64_t need = align_up(size_bytes, granule_bytes_);
  std::optional<std::uint64_t> offset = heap_runs_.take(need);
  if (!offset) {
    grow_heap(need);
    offset = heap_runs_.take(need);
    assert(offset);
  }
  return heap_ + *offset;
}

void MappedSource::grow_heap(std::uint64_t size_bytes) {
  // The free end of the heap is a part of the block, less what aligning it to a page may take.
  const std::uint64_t end = heap_pages_.size() * page_bytes_;
  const FreeRuns::Run last = heap_runs_.last();
  const std::uint64_t begin = last.end == end ? align_up(last.begin, kPageBytes) : end;
  const std::uint64_t count = ceil_div(begin + size_bytes - end, page_bytes_);
  if (heap_pages_.size() + count > page_count_) {
    throw OutOfMemory(std::string(name_of(tier_)), size_bytes, heap_runs_.largest(),
                      "a small block");
  }
  make_free(count, size_bytes);
  // Making room may have taken pages from the heap's end.
  const std::uint64_t now = heap_pages_.size() * page_bytes_;
  if (now != end) {
    grow_heap(size_bytes);
    return;
  }
  const Pages pages(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  memory_->map(heap_ + end, pages);
  free_.resize(free_.size() - count);
  heap_pages_.insert(heap_pages_.end(), pages.begin(), pages.end());
  heap_runs_.give({end, end + count * page_bytes_});
}

std::uint64_t MappedSource::heap_tail_pages() const {
  const std::uint64_t end = heap_pages_.size() * page_bytes_;
  const FreeRuns::Run last = heap_runs_.last();
  if (last.end != end) return 0;
  return (end - align_up(last.begin, page_bytes_)) / page_bytes_;
}

void MappedSource::shrink_heap() {
  const std::uint64_t count = heap_tail_pages();
  if (count == 0) return;
  end_epoch();  // small blocks have no epochs
  wait_for(epoch_ - 1);
  const std::uint64_t begin = (heap_pages_.size() - count) * page_bytes_;
  heap_runs_.cut_last(begin);
  memory_->unmap(heap_ + begin, count * page_bytes_);
  free_.insert(free_.end(), heap_pages_.end() - static_cast<std::ptrdiff_t>(count),
               heap_pages_.end());
  heap_pages_.resize(heap_pages_.size() - count);
}

void MappedSource::free(void* block, std::size_t size_bytes) noexcept {
  if (block == nullptr) return;
  auto* const begin = static_cast<std::byte*>(block);
  try {
    MutexLock lock(mutex_);
    if (size_bytes >= page_bytes_) {
      free_pages(begin, size_bytes);
    } else {
      const auto offset = static_cast<std::uint64_t>(begin - heap_);
      heap_runs_.give({offset, offset + align_up(size_bytes, granule_bytes_)});
    }
  } catch (const std::exception& e) {  // no memory for the lists: the block stays in use
    log(LogLevel::error, std::string("a device's memory lost a block of ") +
                             std::to_string(size_bytes) + " bytes: " + e.what());
  }
}

void MappedSource::free_pages(std::byte* block, std::uint64_t size_bytes) {
  const auto found = live_.find(block);
  assert(found != live_.end());
  rounding_bytes_ -= rounding(size_bytes);
  const std::uint64_t count = found->second.size();
  cached_.push_back({block, std::move(found->second), epoch_});
  live_.erase(found);
  cached_by_count_[count].push_back(std::prev(cached_.end()));
  freed_in_epoch_ += count;
  if (freed_in_epoch_ * kEpochsOfMemory < page_count_) return;
  try {
    end_epoch();
  } catch (const Error&) {  // the next mark covers this epoch too; an allocation reports the error
  }
}

void MappedSource::end_epoch() {
  marks_.emplace_back(epoch_, memory_->mark_work());
  ++epoch_;
  freed_in_epoch_ = 0;
}

void MappedSource::wait_for(std::uint64_t epoch) {
  if (epoch == epoch_) end_epoch();
  while (!marks_.empty() && marks_.front().first <= epoch) {
    marks_.front().second->wait();
    marks_.pop_front();
  }
}

std::uint64_t MappedSource::gap_bytes() const {
  MutexLock lock(mutex_);
  return rounding_bytes_ + heap_runs_.total();
}

}  // namespace sluice::offload
