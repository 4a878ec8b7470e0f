#pragma once
// Inverted dropout whose masks come from Philox 4x32-10, so that a recompute draws them again.
// Confined to thread: the one that computes.

#include <torch/torch.h>

#include <cstdint>

#include "sluice/models/philox.hpp"

namespace sluice::models {

// Which dropout masks to draw; the same key gives the same masks, in the recompute too.
struct DropoutKey {
  bool training = false;
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t micro_batch = 0;
};

// Inverted dropout with a mask from Philox 4x32-10 keyed by (seed, step, unit, micro-batch, site).
// Identity when not training or p is 0 (then nothing is drawn).
torch::Tensor dropout(const torch::Tensor& x, double p, const DropoutKey& key, std::int64_t unit,
                      std::int64_t site);

// The stream of one dropout site.
PhiloxStream dropout_stream(const DropoutKey& key, std::int64_t unit, std::int64_t site);

// Drops elements of the contiguous tensor `x` in place with probability p and scales the others by
// 1 / (1 - p), in fp32. On the CPU element i takes number first_index + i of the stream. Elsewhere
// the numbers are those of LibTorch's generator of that device, seeded by the stream and
// first_index: the same for the same device and call, and others than the CPU's.
void drop_in_place(torch::Tensor& x, double p, const PhiloxStream& stream,
                   std::uint64_t first_index);

}  // namespace sluice::models
