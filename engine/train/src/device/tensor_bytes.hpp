#pragma once
// Tensors as bytes and bytes as tensors; no copies.

#include <torch/torch.h>

#include <cstddef>
#include <span>

#include "sluice/base/dtype.hpp"

namespace sluice::train {

inline std::span<std::byte> bytes_of_tensor(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

inline torch::Dtype torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return torch::kFloat32;
    case DType::bf16:
      return torch::kBFloat16;
    case DType::fp16:
      return torch::kFloat16;
  }
  return torch::kFloat32;
}

inline DType dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kBFloat16 ? DType::bf16
         : tensor.scalar_type() == torch::kHalf   ? DType::fp16
                                                  : DType::fp32;
}

// A flat tensor over `bytes` of that device, which must outlive it.
inline torch::Tensor tensor_over(std::span<std::byte> bytes, DType dtype,
                                 torch::Device device = torch::kCPU) {
  const auto count = static_cast<std::int64_t>(bytes.size() / size_of(dtype));
  return torch::from_blob(bytes.data(), {count},
                          torch::TensorOptions().dtype(torch_dtype(dtype)).device(device));
}

}  // namespace sluice::train
