#pragma once
// Norms of gradients on a device that is not host-addressable. Not installed.

#include <torch/types.h>

#include "device/gpu_compute.hpp"

namespace sluice::train {

// Issues work on the device that writes the sum of the squares of `gradient` (one dimension, any
// data type) to `result` (one fp64 element). The sum is non-finite when an element is. Without the
// kernel of `gpu` (which may be null) it is also non-finite when an element's square overflows
// fp32. Equal gradients give equal bits. Does not wait.
void issue_squared_norm(GpuCompute* gpu, const torch::Tensor& gradient,
                        const torch::Tensor& result);

}  // namespace sluice::train
