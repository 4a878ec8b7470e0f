#pragma once
// A PhiloxStream in the data that LibTorch keeps from forward to backward. Thread-compatible:
// callers synchronise.

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "sluice/models/philox.hpp"

namespace sluice::models {

inline void save_stream(torch::autograd::AutogradContext& context, const PhiloxStream& stream) {
  context.saved_data["stream"] =
      std::vector<std::int64_t>{stream.key[0], stream.key[1], stream.high[0], stream.high[1]};
}
inline PhiloxStream saved_stream(torch::autograd::AutogradContext& context) {
  const std::vector<std::int64_t> words = context.saved_data["stream"].toIntVector();
  const auto word = [&](std::size_t i) { return static_cast<std::uint32_t>(words[i]); };
  return {{word(0), word(1)}, {word(2), word(3)}};
}

}  // namespace sluice::models
