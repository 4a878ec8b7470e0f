#include "cuda/cuda_api.hpp"

#include <cuda.h>

#include <type_traits>

#include "sluice/base/error.hpp"
#include "sluice/base/file/loaded_library.hpp"
#include "sluice/base/log.hpp"

namespace sluice::offload::cuda {

namespace {

constexpr const char* kLibrary = "libcudart.so.13";
constexpr const char* kDriver = "libcuda.so.1";  // the runtime's own calls need it

// The functions by the runtime's own names and types.
struct Functions {
  decltype(&::cudaGetErrorName) error_name;
  decltype(&::cudaGetErrorString) error_text;
  decltype(&::cudaGetLastError) get_last_error;
  decltype(&::cudaDriverGetVersion) driver_get_version;
  decltype(&::cudaRuntimeGetVersion) runtime_get_version;
  decltype(&::cudaGetDeviceCount) get_device_count;
  decltype(&::cudaGetDeviceProperties) get_device_properties;
  decltype(&::cudaGetDevice) get_device;
  decltype(&::cudaSetDevice) set_device;
  decltype(&::cudaSetDeviceFlags) set_device_flags;
  decltype(&::cudaMemGetInfo) mem_get_info;
  // These have overloads in C++.
  cudaError_t (*malloc)(void**, std::size_t);
  decltype(&::cudaFree) free;
  decltype(&::cudaHostRegister) host_register;
  decltype(&::cudaHostUnregister) host_unregister;
  decltype(&::cudaStreamCreateWithFlags) stream_create;
  decltype(&::cudaStreamDestroy) stream_destroy;
  decltype(&::cudaStreamSynchronize) stream_synchronize;
  decltype(&::cudaStreamWaitEvent) stream_wait_event;
  decltype(&::cudaEventCreateWithFlags) event_create;
  decltype(&::cudaEventDestroy) event_destroy;
  decltype(&::cudaEventRecord) event_record;
  decltype(&::cudaEventQuery) event_query;
  decltype(&::cudaEventSynchronize) event_synchronize;
  decltype(&::cudaEventElapsedTime) event_elapsed_time;
  decltype(&::cudaMemcpyAsync) memcpy_async;
};

Functions find_functions(LoadedLibrary& library) {
  Functions f{};
  library.find(f.error_name, "cudaGetErrorName");
  library.find(f.error_text, "cudaGetErrorString");
  library.find(f.get_last_error, "cudaGetLastError");
  library.find(f.driver_get_version, "cudaDriverGetVersion");
  library.find(f.runtime_get_version, "cudaRuntimeGetVersion");
  library.find(f.get_device_count, "cudaGetDeviceCount");
  library.find(f.get_device_properties, "cudaGetDeviceProperties");
  library.find(f.get_device, "cudaGetDevice");
  library.find(f.set_device, "cudaSetDevice");
  library.find(f.set_device_flags, "cudaSetDeviceFlags");
  library.find(f.mem_get_info, "cudaMemGetInfo");
  library.find(f.malloc, "cudaMalloc");
  library.find(f.free, "cudaFree");
  library.find(f.host_register, "cudaHostRegister");
  library.find(f.host_unregister, "cudaHostUnregister");
  library.find(f.stream_create, "cudaStreamCreateWithFlags");
  library.find(f.stream_destroy, "cudaStreamDestroy");
  library.find(f.stream_synchronize, "cudaStreamSynchronize");
  library.find(f.stream_wait_event, "cudaStreamWaitEvent");
  library.find(f.event_create, "cudaEventCreateWithFlags");
  library.find(f.event_destroy, "cudaEventDestroy");
  library.find(f.event_record, "cudaEventRecord");
  library.find(f.event_query, "cudaEventQuery");
  library.find(f.event_synchronize, "cudaEventSynchronize");
  library.find(f.event_elapsed_time, "cudaEventElapsedTime");
  library.find(f.memcpy_async, "cudaMemcpyAsync");
  return f;
}

// The runtime does not tell which devices have a context. Null without a driver: then there is no
// device either.
decltype(&::cuDevicePrimaryCtxGetState) find_context_state() {
  decltype(&::cuDevicePrimaryCtxGetState) state = nullptr;
  LoadedLibrary(kDriver).find(state, "cuDevicePrimaryCtxGetState");
  return state;
}

class CudaRuntime final : public CudaApi {
 public:
  explicit CudaRuntime(const Functions& functions)
      : f_(functions), context_state_(find_context_state()) {}

  std::string error_name(cudaError_t error) override { return f_.error_name(error); }
  std::string error_text(cudaError_t error) override { return f_.error_text(error); }
  void forget_error() override { static_cast<void>(f_.get_last_error()); }
  Result driver_get_version(int* version) override { return f_.driver_get_version(version); }
  Result runtime_get_version(int* version) override { return f_.runtime_get_version(version); }
  Result get_device_count(int* count) override { return f_.get_device_count(count); }
  Result get_device_properties(cudaDeviceProp* properties, int device) override {
    return f_.get_device_properties(properties, device);
  }
  Result get_device(int* device) override { return f_.get_device(device); }
  Result set_device(int device) override { return f_.set_device(device); }
  // The driver numbers devices as the runtime does.
  bool has_context(int device) override {
    unsigned flags = 0;
    int active = 0;
    return context_state_ != nullptr && context_state_(device, &flags, &active) == CUDA_SUCCESS &&
           active != 0;
  }
  Result set_device_flags(unsigned flags) override { return f_.set_device_flags(flags); }
  Result mem_get_info(std::size_t* free_bytes, std::size_t* total_bytes) override {
    return f_.mem_get_info(free_bytes, total_bytes);
  }
  Result malloc(void** block, std::size_t size_bytes) override {
    return f_.malloc(block, size_bytes);
  }
  Result free(void* block) override { return f_.free(block); }
  Result host_register(void* block, std::size_t size_bytes, unsigned flags) override {
    return f_.host_register(block, size_bytes, flags);
  }
  Result host_unregister(void* block) override { return f_.host_unregister(block); }
  Result stream_create(cudaStream_t* stream, unsigned flags) override {
    return f_.stream_create(stream, flags);
  }
  Result stream_destroy(cudaStream_t stream) override { return f_.stream_destroy(stream); }
  Result stream_synchronize(cudaStream_t stream) override { return f_.stream_synchronize(stream); }
  Result stream_wait_event(cudaStream_t stream, cudaEvent_t event) override {
    return f_.stream_wait_event(stream, event, 0);
  }
  Result event_create(cudaEvent_t* event, unsigned flags) override {
    return f_.event_create(event, flags);
  }
  Result event_destroy(cudaEvent_t event) override { return f_.event_destroy(event); }
  Result event_record(cudaEvent_t event, cudaStream_t stream) override {
    return f_.event_record(event, stream);
  }
  Result event_query(cudaEvent_t event) override { return f_.event_query(event); }
  Result event_synchronize(cudaEvent_t event) override { return f_.event_synchronize(event); }
  Result event_elapsed_time(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) override {
    return f_.event_elapsed_time(milliseconds, begin, end);
  }
  Result memcpy_async(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind kind,
                      cudaStream_t stream) override {
    return f_.memcpy_async(to, from, size_bytes, kind, stream);
  }

 private:
  const Functions f_;
  const decltype(&::cuDevicePrimaryCtxGetState) context_state_;
};

// Clears the thread's last error: the caller gets it here, and LibTorch's next check would report
// it as its own. After an error that broke the device, every later call returns it all the same.
CudaError make_error(CudaApi& api, cudaError_t error, const char* call,
                     const std::string& what_for) {
  api.forget_error();
  return CudaError(static_cast<int>(error), api.error_name(error), api.error_text(error),
                   function_of(call), what_for);
}

}  // namespace

std::unique_ptr<CudaApi> load_cuda_runtime(std::string& why_not) {
  LoadedLibrary library(kLibrary, SLUICE_CUDART_FOLDER);
  return library.make<CudaRuntime>(find_functions(library), why_not);
}

void throw_cuda_failed(CudaApi& api, cudaError_t error, const char* call,
                       const std::string& what_for) {
  throw make_error(api, error, call, what_for);
}

bool has_reached(CudaApi& api, cudaEvent_t event, const std::string& what_for) {
  const cudaError_t reached = api.event_query(event);
  if (reached == cudaSuccess) return true;
  if (reached != cudaErrorNotReady) throw_cuda_failed(api, reached, "event_query", what_for);
  api.forget_error();
  return false;
}

void log_cuda_failed(CudaApi& api, cudaError_t error, const char* call) noexcept {
  try {
    log(LogLevel::error, make_error(api, error, call, "a GPU").what());
  } catch (...) {  // no memory for the text
  }
}

}  // namespace sluice::offload::cuda
