#pragma once
// Counts LibTorch's CPU allocations through c10, rounded as in a memory pool.
// Thread-safe.

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>

#include "sluice/base/mutex.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::models::test {

class CountingAllocator final : public c10::Allocator {
 public:
  // The allocator of this process. The first call installs it permanently, because LibTorch stores
  // the pointer.
  static CountingAllocator& install() {
    static CountingAllocator& allocator = []() -> CountingAllocator& {
      static CountingAllocator instance;
      c10::SetCPUAllocator(&instance, 255);
      return instance;
    }();
    return allocator;
  }

  // Makes the live bytes the zero of peak_bytes().
  void start() {
    MutexLock lock(mutex_);
    base_bytes_ = live_bytes_;
    peak_bytes_ = live_bytes_;
  }
  std::uint64_t peak_bytes() {
    MutexLock lock(mutex_);
    return peak_bytes_ - base_bytes_;
  }
  // Peak of the live bytes since start(), minus those at start().
  std::uint64_t live_bytes() {
    MutexLock lock(mutex_);
    return live_bytes_ - base_bytes_;
  }

  c10::DataPtr allocate(std::size_t size_bytes) override {
    void* block = take(size_bytes);
    return {block, block, &CountingAllocator::give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::give_back; }
  void copy_data(void* to, const void* from, std::size_t size_bytes) const override {
    default_copy_data(to, from, size_bytes);
  }

 private:
  static void give_back(void* block) {
    if (block == nullptr) return;
    install().forget(block);
    std::free(block);
  }

  void* take(std::size_t size_bytes) {
    if (size_bytes == 0) return nullptr;
    const std::uint64_t taken = offload::pool_bytes(size_bytes);
    void* block = std::aligned_alloc(64, taken);
    if (block == nullptr) throw std::bad_alloc();
    MutexLock lock(mutex_);
    sizes_[block] = taken;
    live_bytes_ += taken;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return block;
  }
  void forget(void* block) {
    MutexLock lock(mutex_);
    const auto found = sizes_.find(block);
    live_bytes_ -= found->second;
    sizes_.erase(found);
  }

  Mutex mutex_;
  std::map<void*, std::uint64_t> sizes_ SLUICE_GUARDED_BY(mutex_);
  std::uint64_t live_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::uint64_t base_bytes_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::models::test
