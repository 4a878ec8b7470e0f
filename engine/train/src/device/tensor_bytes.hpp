#pragma once
// Tensors on the device as bytes, and bytes of the device as tensors, without a copy.

#include <torch/types.h>

#include <cstddef>

#include "sluice/base/dtype.hpp"
#include "sluice/models/torch_dtype.hpp"
#include "sluice/offload/device_span.hpp"

namespace sluice::train {

// Bytes of a dense tensor on the device. With the host device, LibTorch's CPU is the device.
inline offload::DeviceSpan device_span_of(const torch::Tensor& tensor) {
  return offload::DeviceSpan(tensor.data_ptr(), tensor.nbytes());
}

using models::torch_dtype;

inline DType dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kBFloat16 ? DType::bf16
         : tensor.scalar_type() == torch::kHalf   ? DType::fp16
                                                  : DType::fp32;
}

// A flat tensor over device memory, which must outlive it. `device`: LibTorch's name of the device.
inline torch::Tensor tensor_over(offload::DeviceSpan memory, DType dtype,
                                 torch::Device device = torch::kCPU) {
  const auto count = static_cast<std::int64_t>(memory.size_bytes() / size_of(dtype));
  return torch::from_blob(memory.address(), {count},
                          torch::TensorOptions().dtype(torch_dtype(dtype)).device(device));
}

}  // namespace sluice::train
