#pragma once
// CudaApi: the part of the CUDA runtime that Sluice calls, one function per function of the
// runtime. Every call of the runtime goes through it, so tests can order, delay and fail the calls.
// The compiler rejects an ignored result. Not installed.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

namespace sluice::offload::cuda {

// A cudaError_t that must not be ignored. A type, because GCC 12 ignores [[nodiscard]] on a virtual
// function.
class [[nodiscard]] Result {
 public:
  // NOLINTBEGIN(google-explicit-constructor): stands for the error in every expression
  Result(cudaError_t error) : error_(error) {}
  operator cudaError_t() const { return error_; }
  // NOLINTEND(google-explicit-constructor)

 private:
  cudaError_t error_;
};

// Thread-safe, as the runtime is.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual std::string error_name(cudaError_t error) = 0;
  virtual std::string error_text(cudaError_t error) = 0;

  // Clears the calling thread's last error. LibTorch asks for the last error after its own calls,
  // and would take this one for its own.
  virtual void forget_error() = 0;
  virtual Result driver_get_version(int* version) = 0;
  virtual Result runtime_get_version(int* version) = 0;
  virtual Result get_device_count(int* count) = 0;
  virtual Result get_device_properties(cudaDeviceProp* properties, int device) = 0;
  // The device of the calling thread; the first one in a new thread.
  virtual Result get_device(int* device) = 0;
  // Makes a context on the device where there is none: some hundred MB of its memory.
  virtual Result set_device(int device) = 0;
  // Whether this process has a context on the device.
  virtual bool has_context(int device) = 0;
  virtual Result set_device_flags(unsigned flags) = 0;  // of the thread's device

  virtual Result mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) = 0;
  virtual Result malloc(void** block, std::size_t size_bytes) = 0;
  virtual Result free(void* block) = 0;
  virtual Result host_register(void* block, std::size_t size_bytes, unsigned flags) = 0;
  virtual Result host_unregister(void* block) = 0;

  virtual Result stream_create(cudaStream_t* stream, unsigned flags) = 0;
  virtual Result stream_destroy(cudaStream_t stream) = 0;
  virtual Result stream_synchronize(cudaStream_t stream) = 0;
  virtual Result stream_wait_event(cudaStream_t stream, cudaEvent_t event) = 0;

  virtual Result event_create(cudaEvent_t* event, unsigned flags) = 0;
  virtual Result event_destroy(cudaEvent_t event) = 0;
  virtual Result event_record(cudaEvent_t event, cudaStream_t stream) = 0;
  virtual Result event_query(cudaEvent_t event) = 0;
  virtual Result event_synchronize(cudaEvent_t event) = 0;
  virtual Result event_elapsed_time(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) = 0;

  virtual Result memcpy_async(void* to, const void* from, std::size_t size_bytes,
                              cudaMemcpyKind kind, cudaStream_t stream) = 0;
};

// Loads the runtime's library, which stays loaded for the life of the process. Null when loading
// fails, with the reason in `why_not`.
std::unique_ptr<CudaApi> load_cuda_runtime(std::string& why_not);

// Throws CudaError with the purpose, the call, and the runtime's text and name of the error, which
// is forgotten.
[[noreturn]] void throw_cuda_failed(CudaApi& api, cudaError_t error, const char* call,
                                    const std::string& what_for);

// Whether the stream is past what the event recorded. "Not ready" becomes the thread's last error,
// as other results do: it is forgotten. Throws as throw_cuda_failed().
bool has_reached(CudaApi& api, cudaEvent_t event, const std::string& what_for);

// Logs the error and forgets it; for code that must not throw.
void log_cuda_failed(CudaApi& api, cudaError_t error, const char* call) noexcept;

}  // namespace sluice::offload::cuda

// SLUICE_CUDA(api, event_record(event, stream), "why"): throws CudaError when the call fails. The
// message is built on failure only.
#define SLUICE_CUDA(api, call, what_for)                                                       \
  do {                                                                                         \
    if (const cudaError_t sluice_error = (api).call; sluice_error != cudaSuccess) [[unlikely]] \
      ::sluice::offload::cuda::throw_cuda_failed((api), sluice_error, #call, (what_for));      \
  } while (false)
