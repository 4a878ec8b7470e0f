#pragma once
// Parameters that own no bytes: while their unit computes they point at views of its flat buffers,
// otherwise they are empty. No copies. Confined to the thread that computes.

#include <torch/torch.h>

#include <vector>

#include "sluice/zero/unit_layout.hpp"

namespace sluice::models {

// The view of a unit's flat buffer that holds a parameter, in its shape.
torch::Tensor view_of(const zero::ParamLayout& param, const torch::Tensor& flat);

// Points each parameter at the view with the same index, without a gradient; the views' bytes must
// outlive the binding.
void bind_params(const std::vector<torch::Tensor>& params, const std::vector<torch::Tensor>& views);
// Points each parameter's gradient at the view with the same index, so that backward adds to it; an
// undefined view leaves the parameter without. Views have the shapes and data types of the bound
// weights.
void bind_gradients(const std::vector<torch::Tensor>& params,
                    const std::vector<torch::Tensor>& views);
// Back to empty tensors, of their data type, without gradients.
void unbind_params(const std::vector<torch::Tensor>& params);

}  // namespace sluice::models
