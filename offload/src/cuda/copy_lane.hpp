#pragma once
// CopyLane: the copies of one direction, or the works of a device. It has a stream, and a thread
// that completes the tickets in order. Not installed.

#include <cstdint>
#include <deque>
#include <exception>
#include <string>
#include <thread>
#include <variant>

#include "cuda/cuda_api.hpp"
#include "cuda/cuda_handles.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/cuda_device.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload::cuda {

struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t size_bytes = 0;
  cudaMemcpyKind kind = cudaMemcpyDefault;

  bool uses_link() const { return kind != cudaMemcpyDeviceToDevice; }
};
using LaneJob = std::variant<Copy, DeviceWork>;

// Thread-safe.
class CopyLane {
 public:
  struct Moved {
    std::uint64_t bytes = 0;
    double busy_seconds = 0;  // by the device's clock, without the time a copy waited
  };

  // Copies on `device`; `row` also names its thread, which issues the jobs of pageable memory.
  // Throws CudaError.
  CopyLane(CudaApi& api, int device, HostMemory host_memory, Trace* trace, const std::string& row);
  ~CopyLane();  // waits for everything begun
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // Queues a job. A failure, now or later on the device, is the ticket's error.
  Ticket begin(LaneJob job, const ComputePoint& after);
  // Counts only the copies that use the link.
  Moved moved() const;

 private:
  struct Queued {
    LaneJob job;
    ComputePoint after;  // until it is issued
    Event begin;
    Event end;
    TicketSource done;
  };
  void issue(Queued& queued);
  void enqueue(const Queued& queued);
  std::exception_ptr drain(std::exception_ptr error);
  void run();
  void finish(Queued& queued);
  void count(const Queued& queued);

  CudaApi& api_;
  const int device_;
  const HostMemory host_memory_;
  const TraceRow row_;
  const Stream stream_;
  EventPool begins_;
  EventPool ends_;
  Mutex order_mutex_;  // held while a caller's job is given to the stream; before mutex_
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Queued> queue_ SLUICE_GUARDED_BY(mutex_);
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  Moved moved_ SLUICE_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it starts when all it uses is there
};

}  // namespace sluice::offload::cuda
