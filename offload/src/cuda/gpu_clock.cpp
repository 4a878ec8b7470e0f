#include "cuda/gpu_clock.hpp"

#include <utility>

namespace sluice::offload::cuda {

namespace {

constexpr const char* kReadingClock = "reading the GPU's clock";
// The two clocks drift apart, by some microseconds in a second.
constexpr std::chrono::seconds kReferenceHolds{1};
// A thread that waits for the GPU may wake late on a busy host: then it looks again.
constexpr std::chrono::microseconds kCloseEnough{100};
constexpr int kMostLooks = 8;

}  // namespace

GpuClock::GpuClock(CudaApi& api, int device)
    : api_(api),
      stream_(api, device),
      reference_(api, device, cudaEventDefault),
      next_(api, device, cudaEventDefault) {
  MutexLock lock(mutex_);
  set_reference();
}

void GpuClock::set_reference() {
  auto closest = Time::duration::max();
  for (int look = 0; look < kMostLooks && closest > kCloseEnough; ++look) {
    const Time before = std::chrono::steady_clock::now();
    SLUICE_CUDA(api_, event_record(next_.get(), stream_.get()), kReadingClock);
    SLUICE_CUDA(api_, event_synchronize(next_.get()), kReadingClock);
    const Time after = std::chrono::steady_clock::now();
    if (after - before >= closest) continue;
    closest = after - before;
    std::swap(reference_, next_);
    reference_at_ = before + closest / 2;
  }
}

std::optional<GpuClock::Time> GpuClock::time_of(cudaEvent_t event) {
  if (!has_reached(api_, event, kReadingClock)) return std::nullopt;
  MutexLock lock(mutex_);
  if (std::chrono::steady_clock::now() - reference_at_ > kReferenceHolds) set_reference();
  float milliseconds = 0;  // below zero when the event was reached before the reference
  SLUICE_CUDA(api_, event_elapsed_time(&milliseconds, reference_.get(), event), kReadingClock);
  return reference_at_ + std::chrono::duration_cast<Time::duration>(
                             std::chrono::duration<float, std::milli>(milliseconds));
}

}  // namespace sluice::offload::cuda
