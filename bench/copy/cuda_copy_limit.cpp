#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "copy/copy_limit.hpp"
#include "slices.hpp"
#include "sluice/base/error.hpp"

namespace sluice::bench {

namespace {

// The runtime as LibTorch's wheel brings it, found where the loader looks.
class Runtime {
 public:
  Runtime() : library_(::dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr)
      library_ = ::dlopen(SLUICE_CUDART_FOLDER "/libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      const char* error = ::dlerror();
      throw InvalidArgument(error == nullptr ? "libcudart.so.13 cannot be loaded" : error);
    }
    find(error_name_, "cudaGetErrorName");
    find(error_text_, "cudaGetErrorString");
    find(malloc_, "cudaMalloc");
    find(free_, "cudaFree");
    find(host_alloc_, "cudaHostAlloc");
    find(host_free_, "cudaFreeHost");
    find(stream_create_, "cudaStreamCreateWithFlags");
    find(stream_destroy_, "cudaStreamDestroy");
    find(stream_synchronize_, "cudaStreamSynchronize");
    find(memcpy_async_, "cudaMemcpyAsync");
  }

  void check(cudaError_t error, const char* call) const {
    if (error == cudaSuccess) return;
    throw CudaError(static_cast<int>(error), error_name_(error), error_text_(error), call,
                    "measuring the driver's limit");
  }

  // These have overloads in C++.
  cudaError_t (*malloc_)(void**, std::size_t) = nullptr;
  cudaError_t (*host_alloc_)(void**, std::size_t, unsigned) = nullptr;
  decltype(&::cudaFree) free_ = nullptr;
  decltype(&::cudaFreeHost) host_free_ = nullptr;
  decltype(&::cudaStreamCreateWithFlags) stream_create_ = nullptr;
  decltype(&::cudaStreamDestroy) stream_destroy_ = nullptr;
  decltype(&::cudaStreamSynchronize) stream_synchronize_ = nullptr;
  decltype(&::cudaMemcpyAsync) memcpy_async_ = nullptr;

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) throw InvalidArgument(std::string("libcudart.so.13 has no ") + name);
  }

  void* library_;  // stays loaded: the runtime does not survive being unloaded
  decltype(&::cudaGetErrorName) error_name_ = nullptr;
  decltype(&::cudaGetErrorString) error_text_ = nullptr;
};

// Pinned and device memory and a stream, for one direction. Its errors on the way out are of no
// use.
class Lane {
 public:
  // Delegates, so that what was had is given back where the rest cannot be.
  Lane(const Runtime& runtime, std::size_t size_bytes) : Lane(&runtime, size_bytes) {
    runtime.check(runtime.stream_create_(&stream_, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    runtime.check(runtime.malloc_(&device_, size_bytes), "cudaMalloc");
    runtime.check(runtime.host_alloc_(&host_, size_bytes, cudaHostAllocDefault), "cudaHostAlloc");
    std::memset(host_, 1, size_bytes);
  }
  ~Lane() {
    if (host_ != nullptr) static_cast<void>(runtime_.host_free_(host_));
    if (device_ != nullptr) static_cast<void>(runtime_.free_(device_));
    if (stream_ != nullptr) static_cast<void>(runtime_.stream_destroy_(stream_));
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void begin(Direction direction) {
    const bool in = direction == Direction::in;
    runtime_.check(
        runtime_.memcpy_async_(in ? device_ : host_, in ? host_ : device_, size_bytes_,
                               in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  }
  void finish() { runtime_.check(runtime_.stream_synchronize_(stream_), "cudaStreamSynchronize"); }

 private:
  Lane(const Runtime* runtime, std::size_t size_bytes)
      : runtime_(*runtime), size_bytes_(size_bytes) {}

  const Runtime& runtime_;
  const std::size_t size_bytes_;
  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;
  void* host_ = nullptr;
};

class CudaLimit final : public CopyLimit {
 public:
  explicit CudaLimit(std::size_t size_bytes)
      : in_(runtime_, size_bytes), out_(runtime_, size_bytes) {}

  double seconds(Direction direction) override {
    return seconds_of([&] {
      if (direction != Direction::out) in_.begin(Direction::in);
      if (direction != Direction::in) out_.begin(Direction::out);
      if (direction != Direction::out) in_.finish();
      if (direction != Direction::in) out_.finish();
    });
  }

 private:
  const Runtime runtime_;
  Lane in_, out_;
};

}  // namespace

std::unique_ptr<CopyLimit> make_cuda_limit(std::size_t size_bytes) {
  return std::make_unique<CudaLimit>(size_bytes);
}

}  // namespace sluice::bench
