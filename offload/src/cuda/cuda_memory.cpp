#include "cuda/cuda_memory.hpp"

#include <new>
#include <string>
#include <utility>

#include "cuda/cuda_handles.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::offload::cuda {

namespace {

class DeviceSource final : public MemorySource {
 public:
  DeviceSource(std::shared_ptr<CudaApi> api, int device) : api_(std::move(api)), device_(device) {}

  void* allocate(std::size_t size_bytes) override {
    const std::string what_for = "taking " + format_bytes(size_bytes) + " of the GPU's memory";
    const DeviceGuard guard(*api_, device_);
    void* block = nullptr;
    const cudaError_t error = api_->malloc(&block, size_bytes);
    if (error == cudaSuccess) return block;
    api_->forget_error();
    if (error != cudaErrorMemoryAllocation) throw_cuda_failed(*api_, error, "malloc", what_for);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    SLUICE_CUDA(*api_, mem_get_info(&free_bytes, &total_bytes), what_for);
    throw OutOfMemory(
        std::string(name_of(Tier::device)), size_bytes, free_bytes,
        "the device budget on a GPU of " + format_bytes(total_bytes) +
            " (lower \"sluice\": {\"device_bytes\"}, or end what else uses the GPU: nvidia-smi "
            "shows it)");
  }
  void free(void* block, std::size_t /*size_bytes*/) noexcept override {
    const DeviceGuard guard(*api_, device_, std::nothrow);
    if (const cudaError_t error = api_->free(block); error != cudaSuccess)
      log_cuda_failed(*api_, error, "free");
  }

 private:
  const std::shared_ptr<CudaApi> api_;  // shared with the device
  const int device_;
};

class RegisteredSource final : public MemorySource {
 public:
  RegisteredSource(std::shared_ptr<CudaApi> api, int device)
      : api_(std::move(api)), device_(device), pages_(make_page_source()) {}

  void* allocate(std::size_t size_bytes) override {
    const std::string what_for = "registering " + format_bytes(size_bytes) + " of host memory";
    const DeviceGuard guard(*api_, device_);
    void* block = pages_->allocate(size_bytes);
    if (block == nullptr) return nullptr;
    // Portable: for every GPU of the process.
    const cudaError_t error = api_->host_register(block, size_bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess) return block;
    api_->forget_error();
    pages_->free(block, size_bytes);
    if (error == cudaErrorMemoryAllocation) return nullptr;
    throw_cuda_failed(*api_, error, "host_register", what_for);
  }
  void free(void* block, std::size_t size_bytes) noexcept override {
    const DeviceGuard guard(*api_, device_, std::nothrow);
    if (const cudaError_t error = api_->host_unregister(block); error != cudaSuccess)
      log_cuda_failed(*api_, error, "host_unregister");
    pages_->free(block, size_bytes);
  }

 private:
  const std::shared_ptr<CudaApi> api_;  // shared with the device
  const int device_;
  // Not locked with mlock: the driver pins the pages that it registers, beside RLIMIT_MEMLOCK.
  const std::unique_ptr<MemorySource> pages_;
};

}  // namespace

std::unique_ptr<MemorySource> make_device_source(std::shared_ptr<CudaApi> api, int device) {
  return std::make_unique<DeviceSource>(std::move(api), device);
}

std::unique_ptr<MemorySource> make_registered_source(std::shared_ptr<CudaApi> api, int device) {
  return std::make_unique<RegisteredSource>(std::move(api), device);
}

}  // namespace sluice::offload::cuda
