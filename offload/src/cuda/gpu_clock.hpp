#pragma once
// GpuClock: when a GPU reached an event, by the host's clock. Not installed.

#include <chrono>
#include <optional>

#include "cuda/cuda_handles.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::offload::cuda {

// Thread-safe.
class GpuClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws CudaError.
  GpuClock(CudaApi& api, int device);

  // The time of a recorded event with timing; nullopt when the GPU has not reached it. The calling
  // thread uses the clock's device. Throws CudaError.
  std::optional<Time> time_of(cudaEvent_t event);

 private:
  void set_reference() SLUICE_REQUIRES(mutex_);

  CudaApi& api_;
  const Stream stream_;  // always idle, so that an event is reached when it is recorded
  Mutex mutex_;
  // The GPU reports only the time between two events; the host's time of this one is known, to half
  // the time between the host's looks before and after it.
  Event reference_ SLUICE_GUARDED_BY(mutex_);
  Event next_ SLUICE_GUARDED_BY(mutex_);  // a candidate for it
  Time reference_at_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::offload::cuda
