#pragma once
// DriverApi: the calls of NVIDIA's driver for virtual memory, one function per function of the
// driver. The CUDA runtime has no equal. Every call goes through it, so tests can bring their own.
// Not installed.

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>

namespace sluice::offload::cuda {

// A CUresult that must not be ignored; see Result of cuda_api.hpp.
class [[nodiscard]] DriverResult {
 public:
  // NOLINTBEGIN(google-explicit-constructor): stands for the error in every expression
  DriverResult(CUresult error) : error_(error) {}
  operator CUresult() const { return error_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  CUresult error_;
};

// Memory is that of one GPU, by its index in the runtime. Thread-safe, as the driver is.
class DriverApi {
 public:
  virtual ~DriverApi() = default;

  virtual std::string error_name(CUresult error) = 0;
  virtual std::string error_text(CUresult error) = 0;
  virtual DriverResult mem_get_granularity(std::size_t* page_bytes, int device) = 0;
  virtual DriverResult mem_create(CUmemGenericAllocationHandle* page, std::size_t size_bytes,
                                  int device) = 0;
  virtual DriverResult mem_release(CUmemGenericAllocationHandle page) = 0;
  virtual DriverResult mem_address_reserve(CUdeviceptr* begin, std::size_t size_bytes) = 0;
  virtual DriverResult mem_address_free(CUdeviceptr begin, std::size_t size_bytes) = 0;
  virtual DriverResult mem_map(CUdeviceptr begin, std::size_t size_bytes,
                               CUmemGenericAllocationHandle page) = 0;
  virtual DriverResult mem_unmap(CUdeviceptr begin, std::size_t size_bytes) = 0;
  // Lets `device` read and write the mapped addresses.
  virtual DriverResult mem_set_access(CUdeviceptr begin, std::size_t size_bytes, int device) = 0;
};

// Loads the driver's library, which stays loaded for the life of the process. Null when loading
// fails, or when the driver is too old for these calls, with the reason in `why_not`.
std::unique_ptr<DriverApi> load_cuda_driver(std::string& why_not);

// Throws CudaError with the purpose, the call, and the driver's text and name of the error.
[[noreturn]] void throw_driver_failed(DriverApi& api, CUresult error, const char* call,
                                      const std::string& what_for);

// Logs the error; for code that must not throw.
void log_driver_failed(DriverApi& api, CUresult error, const char* call) noexcept;

}  // namespace sluice::offload::cuda

// SLUICE_CUDA_DRIVER(api, mem_unmap(begin, size_bytes), "why"): throws CudaError when the call
// fails. The message is built on failure only.
#define SLUICE_CUDA_DRIVER(api, call, what_for)                                              \
  do {                                                                                       \
    if (const CUresult sluice_error = (api).call; sluice_error != CUDA_SUCCESS) [[unlikely]] \
      ::sluice::offload::cuda::throw_driver_failed((api), sluice_error, #call, (what_for));  \
  } while (false)
