#pragma once
// Norms of gradients where the host does not address them. Not installed.

#include <torch/torch.h>

#include "device/gpu_compute.hpp"

namespace sluice::train {

// Issues work on the device that writes the sum of the squares of `gradient` (one dimension, any
// data type) to `result` (one fp64 element): not finite when an element is not, and without the
// kernel of `gpu` (which may be null) also when the square of an element does not fit fp32. The
// same bits whenever the same gradient is given. Does not wait.
void issue_squared_norm(GpuCompute* gpu, const torch::Tensor& gradient,
                        const torch::Tensor& result);

}  // namespace sluice::train
