#pragma once
// Owners of the runtime's streams and events; move-only. Not installed.

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "cuda/cuda_api.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::offload::cuda {

// A stream of its own, which does not wait for the default stream. Thread-compatible.
class Stream {
 public:
  // Makes `device` the calling thread's. Throws CudaError.
  Stream(CudaApi& api, int device) : api_(&api) {
    SLUICE_CUDA(api, set_device(device), "a stream of copies");
    SLUICE_CUDA(api, stream_create(&stream_, cudaStreamNonBlocking), "a stream of copies");
  }
  // The queued work must have ended.
  ~Stream() {
    if (const cudaError_t error = api_->stream_destroy(stream_); error != cudaSuccess)
      log_cuda_failed(*api_, error, "stream_destroy");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  CudaApi* const api_;
  cudaStream_t stream_ = nullptr;
};

// Thread-compatible.
class Event {
 public:
  Event() = default;  // none
  // On the calling thread's device. Throws CudaError.
  Event(CudaApi& api, unsigned flags) : api_(&api) {
    SLUICE_CUDA(api, event_create(&event_, flags), "an event");
  }
  Event(Event&& other) noexcept : api_(other.api_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ == nullptr) return;
    if (const cudaError_t error = api_->event_destroy(event_); error != cudaSuccess)
      log_cuda_failed(*api_, error, "event_destroy");
  }

  cudaEvent_t get() const { return event_; }

 private:
  CudaApi* api_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

// Reuses events, because creating an event takes longer than recording it. Thread-safe.
class EventPool {
 public:
  EventPool(CudaApi& api, unsigned flags) : api_(api), flags_(flags) {}

  // On the calling thread's device. Throws CudaError.
  Event take() {
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        Event event = std::move(free_.back());
        free_.pop_back();
        return event;
      }
    }
    return Event(api_, flags_);
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
  const unsigned flags_;
  Mutex mutex_;
  std::vector<Event> free_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload::cuda
