#pragma once
// Pages of a GPU's memory, by the driver's calls for virtual memory. Not installed.

#include <cstdint>
#include <memory>

#include "cuda/cuda_api.hpp"
#include "cuda/pages/driver_api.hpp"
#include "memory/page_memory.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/offload/cuda_device.hpp"

namespace sluice::offload::cuda {

// A GPU with both of its libraries.
struct PageDevice {
  std::shared_ptr<CudaApi> api;       // shared with the device
  std::shared_ptr<DriverApi> driver;  // shared with the device
  int index = 0;
  cudaStream_t compute_stream = nullptr;  // marks are points of this stream
  Trace* trace = nullptr;                 // row "pages": what mapping costs; outlives the memory
};

// Reserves, maps, writes, reads back and unmaps two pages in swapped order. Says why not where a
// call fails, or where the bytes that come back are others.
CudaPages find_pages(const PageDevice& device);

// Throws CudaError.
std::unique_ptr<PageMemory> make_page_memory(PageDevice device);

}  // namespace sluice::offload::cuda
