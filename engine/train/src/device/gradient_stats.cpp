#include "device/gradient_stats.hpp"

#include "device/tensor_bytes.hpp"

namespace sluice::train {

using torch::Tensor;

namespace {

// Rows are summed in fp32, their sums in fp64.
constexpr std::int64_t kRowCount = 1 << 16;

Tensor sum_of_rows(const Tensor& rows) {
  return at::linalg_vector_norm(rows, 2, at::OptionalIntArrayRef({1}), /*keepdim=*/false,
                                torch::kFloat32)
      .to(torch::kFloat64)
      .square()
      .sum();
}

}  // namespace

void issue_squared_norm(GpuCompute* gpu, const Tensor& gradient, const Tensor& result) {
  const torch::NoGradGuard no_grad;
  if (gpu != nullptr && gpu->has_kernels()) {
    gpu->issue_squared_norm(gradient.data_ptr(), static_cast<std::uint64_t>(gradient.numel()),
                            dtype_of(gradient), result.data_ptr<double>());
    return;
  }
  const std::int64_t rows = gradient.numel() / kRowCount;
  const std::int64_t whole = rows * kRowCount;
  result.zero_();
  if (rows > 0) result.add_(sum_of_rows(gradient.narrow(0, 0, whole).view({rows, kRowCount})));
  const std::int64_t rest = gradient.numel() - whole;
  if (rest > 0) result.add_(sum_of_rows(gradient.narrow(0, whole, rest).view({1, rest})));
}

}  // namespace sluice::train
