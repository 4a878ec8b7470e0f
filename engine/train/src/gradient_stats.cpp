#include "gradient_stats.hpp"

#include <cmath>

namespace sluice::train {

namespace {

double norm_in(torch::Dtype dtype, const torch::Tensor& gradient) {
  return at::linalg_vector_norm(gradient, 2, c10::nullopt, /*keepdim=*/false, dtype).item<double>();
}

}  // namespace

cpu_adam::GradientStats device_gradient_stats(const torch::Tensor& gradient) {
  cpu_adam::GradientStats stats;
  double norm = norm_in(torch::kFloat32, gradient);
  if (!std::isfinite(norm)) norm = norm_in(torch::kFloat64, gradient);
  stats.finite = std::isfinite(norm);
  stats.squared_norm = norm * norm;
  return stats;
}

}  // namespace sluice::train
