#pragma once
// The device that is an NVIDIA GPU. The first call loads the CUDA runtime, so a machine without the
// runtime runs everything else. A build without CUDA's headers has these functions too; they report
// that CUDA is missing.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sluice/base/trace.hpp"
#include "sluice/offload/device.hpp"

namespace sluice::offload {

struct CudaDeviceFacts {
  std::string name;    // "NVIDIA H200"
  std::string bus_id;  // "0000:1b:00.0"
  int major = 0;       // compute capability
  int minor = 0;
  std::uint64_t total_bytes = 0;
};

struct CudaDevices {
  std::vector<CudaDeviceFacts> devices;  // by index, after CUDA_VISIBLE_DEVICES
  std::string why_none;                  // without a device: the reason and the remedy
  // `why_none` is a failure of GPUs that are there, or of their driver.
  bool fails = false;

  // Why there is no GPU `index`; empty: there is one.
  std::string why_missing(int index) const {
    if (devices.empty()) return why_none;
    if (static_cast<std::size_t>(index) < devices.size()) return "";
    return "the GPUs that are visible end with cuda:" + std::to_string(devices.size() - 1);
  }
};

// Lists the GPUs. Makes no context on any GPU, and so takes no GPU memory. A machine without a GPU,
// driver or runtime is a result, not an exception.
CudaDevices find_cuda_devices();

// Free memory of a GPU that find_cuda_devices() found. Makes a context on the GPU, which takes some
// hundreds of MiB of that memory. Throws CudaError.
std::uint64_t cuda_free_bytes(int index);

// Whether the driver maps the GPU's memory page by page, so that none is lost between blocks.
struct CudaPages {
  std::uint64_t page_bytes = 0;  // 0: it does not
  std::string why_not;
};
// Tries it with two pages. Throws CudaError when the GPU does not answer.
CudaPages find_cuda_pages(int index);

// Memory that the copies of a device are to and from. The runtime blocks the thread that issues a
// copy of pageable memory until the compute work before the copy has ended.
enum class HostMemory {
  pinned,    // of make_pinned_source(): the caller issues its copies
  pageable,  // the device's threads issue all copies, so that no caller is blocked
};

struct CudaDeviceOptions {
  int index = 0;
  // Taken from the GPU at construction; the device never takes more.
  std::uint64_t memory_bytes = 0;
  // As find_cuda_pages() says: the memory is pages of this size. 0: the memory is one block, cut by
  // an arena.
  std::uint64_t page_bytes = 0;
  // A cudaStream_t: ComputePoints mark the work on this stream. Outlives the device.
  void* compute_stream = nullptr;
  HostMemory host_memory = HostMemory::pinned;
  Trace* trace = nullptr;  // rows "h2d" and "d2h"
};

// Lets threads that wait for the GPU sleep, for all of this process: by default the runtime waits
// in a loop, on a core that the optimizer needs. Where the runtime refuses, as an old one does once
// the GPU is in use, nothing changes. Throws CudaError where there is no such GPU.
void let_cuda_waits_sleep(int index);

// Throws InvalidArgument, with the reason, when the GPU does not exist; OutOfMemory when the GPU
// has less free memory than `memory_bytes`; CudaError.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

// A stream of a GPU for work of another library, such as NCCL: ordered after compute work, and it
// tells when the work has ended. Confined to one thread at a time. The device outlives it.
class DeviceStream {
 public:
  // The queued work must have ended.
  virtual ~DeviceStream() = default;
  virtual void* handle() const = 0;  // a cudaStream_t
  // Makes the stream's GPU the one of the calling thread. Throws CudaError.
  virtual void use_device() = 0;
  // Work queued from now on begins once compute work has reached `after`. Does not block. Throws
  // CudaError.
  virtual void wait_for(const ComputePoint& after) = 0;
  // Marks the end of what is queued now. Throws CudaError.
  virtual void mark_end() = 0;
  // Whether the stream has reached the last mark_end(). Does not block. Throws CudaError.
  virtual bool has_reached_end() = 0;
};

// Throws InvalidArgument unless `device` is a GPU of make_cuda_device().
std::unique_ptr<DeviceStream> make_device_stream(Device& device);

}  // namespace sluice::offload
