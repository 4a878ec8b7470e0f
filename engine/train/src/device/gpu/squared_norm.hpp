#pragma once
// The kernel of norms, as gpu_library.cpp calls it. Not installed.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "sluice/base/dtype.hpp"

namespace sluice::train {

inline constexpr int kSquaredNormBlocks = 512;

// *result = the sum of the squares of `gradient`, added in fp64 in an order that depends on `count`
// alone; all addresses on the GPU. `partials`: kSquaredNormBlocks values of scratch memory.
[[nodiscard]] cudaError_t launch_squared_norm(const void* gradient, std::uint64_t count,
                                              DType dtype, double* partials, double* result,
                                              cudaStream_t stream);

}  // namespace sluice::train
