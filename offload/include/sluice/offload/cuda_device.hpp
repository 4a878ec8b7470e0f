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
};

// Lists the GPUs. Makes no context on any GPU, and so takes no GPU memory. A machine without a GPU,
// driver or runtime is a result, not an exception.
CudaDevices find_cuda_devices();

// Free memory of a GPU that find_cuda_devices() found. Makes a context on the GPU, which takes some
// hundreds of MiB of that memory. Throws CudaError.
std::uint64_t cuda_free_bytes(int index);

struct CudaDeviceOptions {
  int index = 0;
  // Allocated on the GPU as one block, at construction; the device never takes more.
  std::uint64_t memory_bytes = 0;
  // A cudaStream_t: ComputePoints mark the work on this stream. Outlives the device.
  void* compute_stream = nullptr;
  Trace* trace = nullptr;  // rows "h2d" and "d2h"
};

// Throws InvalidArgument, with the reason, when the GPU does not exist; OutOfMemory when the GPU
// has less free memory than `memory_bytes`; CudaError.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace sluice::offload
