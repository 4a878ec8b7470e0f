#pragma once
// Memory that the CUDA runtime hands out or registers, as sources of pools. Not installed.

#include <memory>

#include "cuda/cuda_api.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::offload::cuda {

// Memory of one GPU, by plain allocations. Freeing waits for what runs there. The source's allocate
// throws OutOfMemory, which has what is free, and CudaError.
std::unique_ptr<MemorySource> make_device_source(std::shared_ptr<CudaApi> api, int device);

// Host memory that the GPU copies to and from directly: mapped pages, huge ones where the system
// has them, registered. The source's allocate throws OutOfMemory when the pages cannot be locked,
// with what to change, and CudaError.
std::unique_ptr<MemorySource> make_registered_source(std::shared_ptr<CudaApi> api, int device);

}  // namespace sluice::offload::cuda
