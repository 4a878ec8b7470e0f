#pragma once
// The norm of a gradient, and whether it is finite, where the gradient is. Not installed.

#include <torch/torch.h>

#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::train {

// Of a gradient on a device that the host does not address, by LibTorch's reductions: sums of
// squares in fp32, and again in fp64 where they do not fit into that. Waits for the gradient.
// Confined to the thread that computes.
cpu_adam::GradientStats device_gradient_stats(const torch::Tensor& gradient);

}  // namespace sluice::train
