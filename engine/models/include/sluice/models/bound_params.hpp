#pragma once
// Binds parameters to a unit's flat buffers. Bound parameters are views of the buffers and own no
// bytes; unbound parameters are empty. Nothing is copied. Confined to thread: the one that
// computes.

#include <torch/types.h>

#include <vector>

#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

// A parameter's view, in its shape, of its unit's flat buffer.
torch::Tensor view_of(const zero::ParamLayout& param, const torch::Tensor& flat);

// Binds each parameter to the view with the same index, and removes its gradient. The views' bytes
// outlive the binding. Throws InvalidArgument unless there is one view for each parameter.
void bind_params(const std::vector<torch::Tensor>& params, const std::vector<torch::Tensor>& views);
// Binds each parameter's gradient to the view with the same index, so that backward accumulates
// into the view. An undefined view means no gradient. Views have the shapes of the bound weights,
// and their data type or fp32. Throws InvalidArgument unless there is one view for each parameter.
void bind_gradients(const std::vector<torch::Tensor>& params,
                    const std::vector<torch::Tensor>& views);
// Replaces the parameters by empty tensors of their data type, and removes their gradients.
void unbind_params(const std::vector<torch::Tensor>& params);

}  // namespace sluice::models
