#include "cuda/gpu_clock.hpp"

namespace sluice::offload::cuda {

namespace {

constexpr const char* kReadingClock = "reading the GPU's clock";
// The two clocks drift apart, by some microseconds in a second.
constexpr std::chrono::seconds kReferenceHolds{1};

}  // namespace

GpuClock::GpuClock(CudaApi& api) : api_(api), stream_(api), reference_(api, cudaEventDefault) {
  MutexLock lock(mutex_);
  set_reference();
}

void GpuClock::set_reference() {
  SLUICE_CUDA(api_, event_record(reference_.get(), stream_.get()), kReadingClock);
  SLUICE_CUDA(api_, event_synchronize(reference_.get()), kReadingClock);
  reference_at_ = std::chrono::steady_clock::now();
}

std::optional<GpuClock::Time> GpuClock::time_of(cudaEvent_t event) {
  const cudaError_t reached = api_.event_query(event);
  if (reached == cudaErrorNotReady) return std::nullopt;
  if (reached != cudaSuccess) throw_cuda_failed(api_, reached, "event_query", kReadingClock);
  MutexLock lock(mutex_);
  if (std::chrono::steady_clock::now() - reference_at_ > kReferenceHolds) set_reference();
  float milliseconds = 0;  // below zero when the event was reached before the reference
  SLUICE_CUDA(api_, event_elapsed_time(&milliseconds, reference_.get(), event), kReadingClock);
  return reference_at_ + std::chrono::duration_cast<Time::duration>(
                             std::chrono::duration<float, std::milli>(milliseconds));
}

}  // namespace sluice::offload::cuda
