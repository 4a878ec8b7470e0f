#pragma once
// Inverted dropout whose masks come from Philox 4x32-10, so that a recompute draws them again.
// Confined to thread: the one that computes.

#include <torch/types.h>

#include <cstdint>

#include "sluice/models/philox.hpp"

namespace sluice::models {

// Key of dropout masks. Equal keys give equal masks, also in a recompute.
struct DropoutKey {
  bool training = false;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
};

// Inverted dropout of `x` with probability `p` in [0, 1), as a node of LibTorch's graph. The mask
// is keyed by (seed, step, unit, micro-batch, site). Returns `x` when not training, or when p is 0.
// Throws InvalidArgument for another `p`.
torch::Tensor dropout(const torch::Tensor& x, double p, const DropoutKey& key, std::int64_t unit,
                      std::int64_t site);

// The stream of one dropout site.
PhiloxStream dropout_stream(const DropoutKey& key, std::int64_t unit, std::int64_t site);

// Drops elements of the contiguous tensor `x` in place with probability `p`, and scales the others
// by 1 / (1 - p), in fp32. On the CPU, element i uses number first_index + i of the stream. Other
// devices use LibTorch's default generator of the device, seeded from stream and first_index: equal
// calls give equal masks on one device, which differ from the CPU's masks.
void drop_in_place(torch::Tensor& x, double p, const PhiloxStream& stream,
                   std::uint64_t first_index);

// LibTorch's default generator of `device`, at the beginning of the numbers for stream and
// first_index. Nothing else uses that generator.
at::Generator seeded_generator(const torch::Device& device, const PhiloxStream& stream,
                               std::uint64_t first_index);

}  // namespace sluice::models
