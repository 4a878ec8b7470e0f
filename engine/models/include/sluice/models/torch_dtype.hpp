#pragma once
// The data types of LibTorch for those of this project, and back. Thread-safe: free functions.

#include <torch/types.h>

#include "sluice/base/dtype.hpp"

namespace sluice::models {

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

}  // namespace sluice::models
