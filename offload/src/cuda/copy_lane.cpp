#include "cuda/copy_lane.hpp"

#include <chrono>
#include <utility>

#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::offload::cuda {

namespace {

std::string text_of(const DeviceWork& work) {
  return work.name + " on the GPU";
}
std::string text_of(const Copy& copy) {
  const std::string size = "copying " + format_bytes(copy.size_bytes);
  switch (copy.kind) {
    case cudaMemcpyHostToDevice:
      return size + " to the GPU";
    case cudaMemcpyDeviceToHost:
      return size + " from the GPU";
    default:
      return size + " within the GPU";
  }
}
std::string text_of(const LaneJob& job) {
  return std::visit([](const auto& of) { return text_of(of); }, job);
}

}  // namespace

CopyLane::CopyLane(CudaApi& api, int device, HostMemory host_memory, Trace* trace,
                   const std::string& row)
    : api_(api),
      device_(device),
      host_memory_(host_memory),
      row_(trace, row),
      stream_(api, device),
      begins_(api, device, cudaEventDefault),
      // Waiting must not spin: the thread is one of those that the optimizer's loops need.
      ends_(api, device, cudaEventBlockingSync),
      thread_(start_thread("cuda-" + row, [this] { run(); })) {}

CopyLane::~CopyLane() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

Ticket CopyLane::begin(LaneJob job, const ComputePoint& after) {
  Queued queued;
  queued.job = std::move(job);
  queued.after = after;
  Ticket ticket = queued.done.ticket();
  MutexLock order(order_mutex_);
  std::exception_ptr error = error_of([&] {
    if (host_memory_ == HostMemory::pinned) issue(queued);
    MutexLock lock(mutex_);
    queue_.push_back(std::move(queued));
    changed_.notify_one();
  });
  // Part of it may be on the stream and use the spans.
  if (error) queued.done.complete(drain(std::move(error)));
  return ticket;
}

void CopyLane::issue(Queued& queued) {
  const DeviceGuard guard(api_, device_);
  queued.begin = begins_.take();
  queued.end = ends_.take();
  enqueue(queued);
  queued.after = {};
}

void CopyLane::enqueue(const Queued& queued) {
  const cudaStream_t stream = stream_.get();
  if (void* const after = queued.after.event(); after != nullptr) {
    SLUICE_CUDA(api_, stream_wait_event(stream, static_cast<cudaEvent_t>(after)),
                text_of(queued.job));
  }
  SLUICE_CUDA(api_, event_record(queued.begin.get(), stream), text_of(queued.job));
  if (const auto* copy = std::get_if<Copy>(&queued.job)) {
    SLUICE_CUDA(api_, memcpy_async(copy->to, copy->from, copy->size_bytes, copy->kind, stream),
                text_of(*copy));
  } else {
    std::get<DeviceWork>(queued.job).issue(stream);
  }
  SLUICE_CUDA(api_, event_record(queued.end.get(), stream), text_of(queued.job));
}

// `error` is what the caller is told; that the stream cannot be waited for either is most often the
// same error.
std::exception_ptr CopyLane::drain(std::exception_ptr error) {
  if (const cudaError_t failed = api_.stream_synchronize(stream_.get()); failed != cudaSuccess)
    log(LogLevel::debug, "draining a stream of copies: " + api_.error_name(failed));
  return error;
}

void CopyLane::run() {
  // Else what waits would make a context on the first GPU.
  if (const cudaError_t error = api_.set_device(device_); error != cudaSuccess)
    log_cuda_failed(api_, error, "set_device");
  for (;;) {
    Queued queued;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.wait(mutex_);
      if (queue_.empty()) return;
      queued = std::move(queue_.front());
      queue_.pop_front();
    }
    if (host_memory_ == HostMemory::pageable) {
      if (std::exception_ptr error = error_of([&] { issue(queued); })) {
        queued.done.complete(drain(std::move(error)));
        continue;
      }
    }
    finish(queued);
  }
}

void CopyLane::finish(Queued& queued) {
  std::exception_ptr error = error_of([&] {
    SLUICE_CUDA(api_, event_synchronize(queued.end.get()), text_of(queued.job));
    count(queued);
  });
  begins_.give_back(std::move(queued.begin));
  ends_.give_back(std::move(queued.end));
  queued.done.complete(std::move(error));
}

void CopyLane::count(const Queued& queued) {
  const auto* copy = std::get_if<Copy>(&queued.job);
  if (copy != nullptr && !copy->uses_link()) return;
  float milliseconds = 0;
  SLUICE_CUDA(api_, event_elapsed_time(&milliseconds, queued.begin.get(), queued.end.get()),
              text_of(queued.job));
  const std::chrono::duration<double, std::milli> busy(milliseconds);
  const auto end = TraceClock::now();
  const auto begin = end - std::chrono::duration_cast<TraceClock::duration>(busy);
  if (copy == nullptr) return row_.add(std::get<DeviceWork>(queued.job).name, {}, begin, end);
  {
    MutexLock lock(mutex_);
    moved_.bytes += copy->size_bytes;
    moved_.busy_seconds += std::chrono::duration<double>(busy).count();
  }
  row_.add("copy", {}, begin, end, {{"bytes", static_cast<std::int64_t>(copy->size_bytes)}});
}

CopyLane::Moved CopyLane::moved() const {
  MutexLock lock(mutex_);
  return moved_;
}

}  // namespace sluice::offload::cuda
