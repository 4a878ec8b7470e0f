#pragma once
// FakeDriver: the driver's calls for virtual memory on a machine without a GPU, beside a FakeCuda.
// The host cannot touch the addresses; a kernel sees them through the FakeCuda, and crashes the
// test where nothing is mapped.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/pages/driver_api.hpp"
#include "fake_cuda.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::offload::test {

// Thread-safe. Outlives the devices that use it, and ends before its FakeCuda.
class FakeDriver final : public cuda::DriverApi {
 public:
  static constexpr std::size_t kPageBytes = 64U << 10U;

  explicit FakeDriver(FakeCuda& cuda) : cuda_(cuda), file_(::memfd_create("fake-pages", 0)) {
    if (file_ < 0 || ::ftruncate(file_, FakeCuda::kMemoryBytes) != 0)
      throw std::runtime_error("memfd");
    for (std::size_t i = FakeCuda::kMemoryBytes / kPageBytes; i-- > 0;) unused_.push_back(i);
    cuda_.reserved = [this](const void* address) { return behind(address); };
  }
  ~FakeDriver() override {
    cuda_.reserved = [](const void*) -> std::byte* { return nullptr; };
    ::close(file_);
  }

  // The `nth` call of `function` from now on fails.
  void fail(const std::string& function, int nth) {
    MutexLock lock(mutex_);
    faults_[function] = calls_[function] + nth;
  }
  int calls(const std::string& function) {
    MutexLock lock(mutex_);
    return calls_[function];
  }
  bool lies = false;  // mapped pages are swapped in pairs: a driver that is broken
  std::size_t pages_in_use() {
    MutexLock lock(mutex_);
    return FakeCuda::kMemoryBytes / kPageBytes - unused_.size();
  }
  std::size_t reservations() {
    MutexLock lock(mutex_);
    return reserved_.size();
  }

  std::string error_name(CUresult error) override {
    return "CUDA_ERROR_" + std::to_string(static_cast<int>(error));
  }
  std::string error_text(CUresult) override { return "a fault of the test"; }
  cuda::DriverResult mem_get_granularity(std::size_t* page_bytes, int) override {
    *page_bytes = kPageBytes;
    return enter("mem_get_granularity");
  }
  cuda::DriverResult mem_create(CUmemGenericAllocationHandle* page, std::size_t size_bytes,
                                int) override {
    if (const CUresult error = enter("mem_create"); error != CUDA_SUCCESS) return error;
    MutexLock lock(mutex_);
    if (size_bytes != kPageBytes) return CUDA_ERROR_INVALID_VALUE;
    if (unused_.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    *page = unused_.back();
    unused_.pop_back();
    return CUDA_SUCCESS;
  }
  cuda::DriverResult mem_release(CUmemGenericAllocationHandle page) override {
    MutexLock lock(mutex_);
    unused_.push_back(page);
    return CUDA_SUCCESS;
  }
  cuda::DriverResult mem_address_reserve(CUdeviceptr* begin, std::size_t size_bytes) override {
    if (const CUresult error = enter("mem_address_reserve"); error != CUDA_SUCCESS) return error;
    std::byte* const addresses = no_memory(nullptr, size_bytes);
    MutexLock lock(mutex_);
    reserved_[addresses] = {size_bytes, no_memory(nullptr, size_bytes), {}};
    *begin = reinterpret_cast<CUdeviceptr>(addresses);
    return CUDA_SUCCESS;
  }
  cuda::DriverResult mem_address_free(CUdeviceptr begin, std::size_t size_bytes) override {
    MutexLock lock(mutex_);
    const auto found = reserved_.find(pointer_to(begin));
    if (found == reserved_.end() || found->second.size_bytes != size_bytes ||
        !found->second.mapped.empty())
      return CUDA_ERROR_INVALID_VALUE;
    ::munmap(found->first, size_bytes);
    ::munmap(found->second.shown, size_bytes);
    reserved_.erase(found);
    return CUDA_SUCCESS;
  }
  cuda::DriverResult mem_map(CUdeviceptr begin, std::size_t size_bytes,
                             CUmemGenericAllocationHandle page) override {
    if (const CUresult error = enter("mem_map"); error != CUDA_SUCCESS) return error;
    MutexLock lock(mutex_);
    const Place at = place_of(begin);
    if (size_bytes != kPageBytes || !at.range->mapped.insert(at.offset).second)
      return CUDA_ERROR_INVALID_VALUE;
    const auto from = static_cast<off_t>((lies ? page ^ 1U : page) * kPageBytes);
    void* const mapped = ::mmap(at.range->shown + at.offset, kPageBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_FIXED, file_, from);
    return mapped == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  }
  cuda::DriverResult mem_unmap(CUdeviceptr begin, std::size_t size_bytes) override {
    enter("mem_unmap");
    MutexLock lock(mutex_);
    const Place at = place_of(begin);
    for (std::size_t offset = at.offset; offset < at.offset + size_bytes; offset += kPageBytes) {
      if (at.range->mapped.erase(offset) == 0) return CUDA_ERROR_INVALID_VALUE;
    }
    no_memory(at.range->shown + at.offset, size_bytes);
    return CUDA_SUCCESS;
  }
  cuda::DriverResult mem_set_access(CUdeviceptr begin, std::size_t size_bytes, int) override {
    if (const CUresult error = enter("mem_set_access"); error != CUDA_SUCCESS) return error;
    MutexLock lock(mutex_);
    const Place at = place_of(begin);
    return at.range->mapped.count(at.offset + size_bytes - kPageBytes) == 1
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  }

 private:
  struct Range {
    std::size_t size_bytes = 0;
    std::byte* shown = nullptr;    // as kernels see it
    std::set<std::size_t> mapped;  // offsets
  };
  struct Place {
    Range* range;
    std::size_t offset;
  };

  // The driver's addresses are whole numbers.
  static std::byte* pointer_to(CUdeviceptr address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the caller has no pointer
    return reinterpret_cast<std::byte*>(address);
  }
  // Addresses that nobody may touch.
  static std::byte* no_memory(void* at, std::size_t size_bytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
    void* begin = ::mmap(at, size_bytes, PROT_NONE, flags, -1, 0);
    if (begin == MAP_FAILED) throw std::runtime_error("mmap");
    return static_cast<std::byte*>(begin);
  }
  Place place_of(CUdeviceptr address) SLUICE_REQUIRES(mutex_) {
    std::byte* const at = pointer_to(address);
    const auto found = std::prev(reserved_.upper_bound(at));
    return {&found->second, static_cast<std::size_t>(at - found->first)};
  }
  std::byte* behind(const void* address) {
    MutexLock lock(mutex_);
    auto* const at = static_cast<std::byte*>(const_cast<void*>(address));
    const auto after = reserved_.upper_bound(at);
    if (after == reserved_.begin()) return nullptr;
    const auto& [begin, range] = *std::prev(after);
    return at < begin + range.size_bytes ? range.shown + (at - begin) : nullptr;
  }
  CUresult enter(const std::string& function) {
    MutexLock lock(mutex_);
    const int nth = ++calls_[function];
    const auto fault = faults_.find(function);
    return fault != faults_.end() && nth == fault->second ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  }

  FakeCuda& cuda_;
  const int file_;
  Mutex mutex_;
  std::map<std::string, int> calls_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, int> faults_ SLUICE_GUARDED_BY(mutex_);
  std::vector<std::size_t> unused_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::byte*, Range> reserved_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload::test
