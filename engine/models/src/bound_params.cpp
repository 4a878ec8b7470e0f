#include "sluice/models/bound_params.hpp"

#include "sluice/base/error.hpp"

namespace sluice::models {

using torch::Tensor;

Tensor view_of(const zero::ParamLayout& param, const Tensor& flat) {
  return flat
      .narrow(0, static_cast<std::int64_t>(param.offset_count),
              static_cast<std::int64_t>(param.count))
      .view(param.shape);
}

void bind_params(const std::vector<Tensor>& params, const std::vector<Tensor>& views) {
  const torch::NoGradGuard no_grad;
  SLUICE_CHECK(params.size() == views.size(), "one view for each parameter");
  for (std::size_t i = 0; i < params.size(); ++i) {
    params[i].mutable_grad().reset();
    params[i].set_data(views[i]);
  }
}

void bind_gradients(const std::vector<Tensor>& params, const std::vector<Tensor>& views) {
  const torch::NoGradGuard no_grad;
  SLUICE_CHECK(params.size() == views.size(), "one view for each parameter");
  for (std::size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = views[i];
}

void unbind_params(const std::vector<Tensor>& params) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& param : params) {
    param.mutable_grad().reset();
    param.set_data(torch::empty({0}, param.options().requires_grad(false)));
  }
}

}  // namespace sluice::models
