#include "cuda/pages/cuda_pages.hpp"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_handles.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload::cuda {

namespace {

constexpr const char* kMapping = "mapping the GPU's memory";

class EventMark final : public WorkMark {
 public:
  EventMark(CudaApi& api, const TraceRow& row, Event event)
      : api_(api), row_(row), event_(std::move(event)) {}
  void wait() override {
    const TraceSpan waiting(row_, "wait", "for the last use");
    SLUICE_CUDA(api_, event_synchronize(event_.get()), "waiting to unmap the GPU's memory");
  }

 private:
  CudaApi& api_;
  const TraceRow row_;
  Event event_;
};

CUdeviceptr address_of(const std::byte* begin) {
  return reinterpret_cast<CUdeviceptr>(begin);
}

std::uint64_t page_bytes_of(const PageDevice& device) {
  const DeviceGuard guard(*device.api, device.index);
  std::size_t page_bytes = 0;
  SLUICE_CUDA_DRIVER(*device.driver, mem_get_granularity(&page_bytes, device.index), kMapping);
  return page_bytes;
}

class DriverPages final : public PageMemory {
 public:
  explicit DriverPages(PageDevice device)
      : device_(std::move(device)),
        page_bytes_(page_bytes_of(device_)),
        row_(device_.trace, "pages") {}

  std::uint64_t page_bytes() const override { return page_bytes_; }

  Page create() override {
    const DeviceGuard guard = use();
    CUmemGenericAllocationHandle page = 0;
    const CUresult error = device_.driver->mem_create(&page, page_bytes_, device_.index);
    if (error == CUDA_SUCCESS) return page;
    if (error != CUDA_ERROR_OUT_OF_MEMORY)
      throw_driver_failed(*device_.driver, error, "mem_create", kMapping);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    SLUICE_CUDA(*device_.api, mem_get_info(&free_bytes, &total_bytes), kMapping);
    throw OutOfMemory(std::string(name_of(Tier::device)), page_bytes_, free_bytes,
                      "the device budget on a GPU (lower \"sluice\": {\"device_bytes\"}, or end "
                      "what else uses the GPU: nvidia-smi shows it)");
  }
  void release(Page page) noexcept override {
    if (const CUresult error = device_.driver->mem_release(page); error != CUDA_SUCCESS)
      log_driver_failed(*device_.driver, error, "mem_release");
  }
  std::byte* reserve(std::uint64_t size_bytes) override {
    const DeviceGuard guard = use();
    CUdeviceptr begin = 0;
    SLUICE_CUDA_DRIVER(*device_.driver, mem_address_reserve(&begin, size_bytes), kMapping);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver names addresses by numbers
    return reinterpret_cast<std::byte*>(begin);
  }
  void unreserve(std::byte* begin, std::uint64_t size_bytes) noexcept override {
    const CUresult error = device_.driver->mem_address_free(address_of(begin), size_bytes);
    if (error != CUDA_SUCCESS) log_driver_failed(*device_.driver, error, "mem_address_free");
  }
  void map(std::byte* begin, std::span<const Page> pages) override {
    const TraceSpan mapping(row_, "map", {}, {"bytes", bytes_of(pages.size() * page_bytes_)});
    const DeviceGuard guard = use();
    std::uint64_t mapped_bytes = 0;
    try {
      for (const Page page : pages) {
        SLUICE_CUDA_DRIVER(*device_.driver,
                           mem_map(address_of(begin + mapped_bytes), page_bytes_, page), kMapping);
        mapped_bytes += page_bytes_;
      }
      SLUICE_CUDA_DRIVER(*device_.driver,
                         mem_set_access(address_of(begin), mapped_bytes, device_.index), kMapping);
    } catch (...) {
      if (mapped_bytes > 0) unmap(begin, mapped_bytes);
      throw;
    }
  }
  void unmap(std::byte* begin, std::uint64_t size_bytes) noexcept override {
    const TraceSpan unmapping(row_, "unmap", {}, {"bytes", bytes_of(size_bytes)});
    const CUresult error = device_.driver->mem_unmap(address_of(begin), size_bytes);
    if (error != CUDA_SUCCESS) log_driver_failed(*device_.driver, error, "mem_unmap");
  }
  std::unique_ptr<WorkMark> mark_work() override {
    const DeviceGuard guard = use();
    Event event(*device_.api, device_.index, cudaEventDisableTiming | cudaEventBlockingSync);
    SLUICE_CUDA(*device_.api, event_record(event.get(), device_.compute_stream),
                "marking the GPU's work");
    return std::make_unique<EventMark>(*device_.api, row_, std::move(event));
  }

 private:
  // The driver's calls need the context of the thread's device.
  DeviceGuard use() const { return {*device_.api, device_.index}; }

  static std::int64_t bytes_of(std::uint64_t size_bytes) {
    return static_cast<std::int64_t>(size_bytes);
  }

  const PageDevice device_;
  const std::uint64_t page_bytes_;
  const TraceRow row_;
};

// A pattern that differs between the pages and within them.
std::vector<std::byte> pattern(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761U) >> 11U);
  return bytes;
}

void copy(const PageDevice& device, void* to, const void* from, std::size_t size_bytes,
          cudaMemcpyKind kind) {
  const Stream stream(*device.api, device.index);
  SLUICE_CUDA(*device.api, memcpy_async(to, from, size_bytes, kind, stream.get()), kMapping);
  SLUICE_CUDA(*device.api, stream_synchronize(stream.get()), kMapping);
}

// Contents of two pages that were written and are then mapped in the other order.
std::vector<std::byte> read_swapped(PageMemory& memory, const PageDevice& device,
                                    const std::vector<std::byte>& written) {
  const std::uint64_t both = written.size();
  std::vector<std::byte> read(both);
  struct Owned {
    PageMemory& memory;
    std::uint64_t both;
    std::vector<PageMemory::Page> pages;
    std::byte* begin = nullptr;
    bool mapped = false;
    ~Owned() {
      if (mapped) memory.unmap(begin, both);
      if (begin != nullptr) memory.unreserve(begin, both);
      for (const PageMemory::Page page : pages) memory.release(page);
    }
  } own{memory, both, {}};
  for (int i = 0; i < 2; ++i) own.pages.push_back(memory.create());
  own.begin = memory.reserve(both);
  memory.map(own.begin, own.pages);
  own.mapped = true;
  copy(device, own.begin, written.data(), both, cudaMemcpyHostToDevice);
  memory.unmap(own.begin, both);
  own.mapped = false;
  std::swap(own.pages[0], own.pages[1]);
  memory.map(own.begin, own.pages);
  own.mapped = true;
  copy(device, read.data(), own.begin, both, cudaMemcpyDeviceToHost);
  return read;
}

}  // namespace

CudaPages find_pages(const PageDevice& device) {
  try {
    const std::unique_ptr<PageMemory> memory = make_page_memory(device);
    const std::uint64_t page_bytes = memory->page_bytes();
    if (page_bytes == 0) return {0, "the driver names no size of a page"};
    const std::vector<std::byte> written = pattern(2 * page_bytes);
    const std::vector<std::byte> read = read_swapped(*memory, device, written);
    const bool same = std::memcmp(read.data(), written.data() + page_bytes, page_bytes) == 0 &&
                      std::memcmp(read.data() + page_bytes, written.data(), page_bytes) == 0;
    if (!same) return {0, "mapped pages return other bytes than were written"};
    return {page_bytes, ""};
  } catch (const Error& e) {
    device.api->forget_error();
    return {0, e.what()};
  }
}

std::unique_ptr<PageMemory> make_page_memory(PageDevice device) {
  return std::make_unique<DriverPages>(std::move(device));
}

}  // namespace sluice::offload::cuda
