#pragma once
// Owners of the runtime's streams and events, and of the thread's choice of a device. Not
// installed.

#include <cuda_runtime_api.h>

#include <new>
#include <utility>
#include <vector>

#include "cuda/cuda_api.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::offload::cuda {

// Makes `device` the calling thread's until the scope ends. Threads of a caller's own run through
// here, and go on with the device that they had. One without a context is not given back: that
// would make one. Confined to the thread.
class DeviceGuard {
 public:
  // Throws CudaError.
  DeviceGuard(CudaApi& api, int device) : api_(api), device_(device) {
    SLUICE_CUDA(api, get_device(&before_), "using the GPU");
    SLUICE_CUDA(api, set_device(device), "using the GPU");
  }
  // For code that must not throw. A GPU that cannot be used fails the call behind this too.
  DeviceGuard(CudaApi& api, int device, std::nothrow_t /*no error*/) noexcept
      : api_(api), device_(device), before_(device) {
    if (api.get_device(&before_) != cudaSuccess) before_ = device;
    if (api.set_device(device) != cudaSuccess) before_ = device;
  }
  ~DeviceGuard() {
    if (before_ == device_ || !api_.has_context(before_)) return;
    if (const cudaError_t error = api_.set_device(before_); error != cudaSuccess)
      log_cuda_failed(api_, error, "set_device");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  CudaApi& api_;
  const int device_;
  int before_ = 0;
};

// A stream of its own, which does not wait for the default stream. Thread-compatible.
class Stream {
 public:
  // Throws CudaError.
  Stream(CudaApi& api, int device) : api_(&api), device_(device) {
    const DeviceGuard guard(api, device);
    SLUICE_CUDA(api, stream_create(&stream_, cudaStreamNonBlocking), "a stream of copies");
  }
  // The queued work must have ended.
  ~Stream() {
    const DeviceGuard guard(*api_, device_, std::nothrow);
    if (const cudaError_t error = api_->stream_destroy(stream_); error != cudaSuccess)
      log_cuda_failed(*api_, error, "stream_destroy");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  CudaApi* const api_;
  const int device_;
  cudaStream_t stream_ = nullptr;
};

// Move-only. Thread-compatible.
class Event {
 public:
  Event() = default;  // none
  // Throws CudaError.
  Event(CudaApi& api, int device, unsigned flags) : api_(&api), device_(device) {
    const DeviceGuard guard(api, device);
    SLUICE_CUDA(api, event_create(&event_, flags), "an event");
  }
  Event(Event&& other) noexcept
      : api_(other.api_), device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ == nullptr) return;
    const DeviceGuard guard(*api_, device_, std::nothrow);
    if (const cudaError_t error = api_->event_destroy(event_); error != cudaSuccess)
      log_cuda_failed(*api_, error, "event_destroy");
  }

  cudaEvent_t get() const { return event_; }

 private:
  CudaApi* api_ = nullptr;
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
};

// Reuses events, because creating an event takes longer than recording it. Thread-safe.
class EventPool {
 public:
  EventPool(CudaApi& api, int device, unsigned flags) : api_(api), device_(device), flags_(flags) {}

  // Throws CudaError.
  Event take() {
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        Event event = std::move(free_.back());
        free_.pop_back();
        return event;
      }
    }
    return {api_, device_, flags_};
  }
  void give_back(Event event) noexcept {
    try {
      MutexLock lock(mutex_);
      free_.push_back(std::move(event));
    } catch (...) {  // no memory for the list: then the event is destroyed
    }
  }

 private:
  CudaApi& api_;
  const int device_;
  const unsigned flags_;
  Mutex mutex_;
  std::vector<Event> free_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload::cuda
