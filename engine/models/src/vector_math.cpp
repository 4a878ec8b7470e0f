#include "sluice/models/vector_math.hpp"

#include <torch/types.h>

namespace sluice::models {

void settle_vector_math() {
  static const bool settled = [] {
    const torch::NoGradGuard no_grad;
    // One element uses one thread. Each data type may choose its kernels separately.
    for (const torch::Dtype dtype : {torch::kFloat32, torch::kFloat64})
      torch::ones({1}, torch::dtype(dtype)).exp_().log_();
    return true;
  }();
  static_cast<void>(settled);
}

}  // namespace sluice::models
