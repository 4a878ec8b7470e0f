#pragma once
// MicroBatches: the token windows of one step, by micro-batch. Each window depends on seed, step
// and sample number only, so neither the tier nor the number of ranks changes what a step trains
// on. Micro-batch m of rank r is number m * ranks + r of the step, which its samples and its
// dropout follow from.

#include <torch/types.h>

#include <cstdint>

#include "sluice/models/dataset.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// B rows, T = n_positions tokens each.
struct Batch {
  torch::Tensor inputs;   // (B, T) int64
  torch::Tensor targets;  // (B, T) int64: the token after each input
};

// The number in the whole step of this rank's micro-batch `index`.
std::int64_t number_in_step(const plan::Plan& plan, std::size_t index);

// Confined to the thread that trains.
class MicroBatches {
 public:
  // `plan` and `data` must outlive it. On a GPU all windows of the step are copied there at once:
  // waiting for a copy per micro-batch would stop the GPU each time.
  MicroBatches(const plan::Plan& plan, const models::Dataset& data, std::uint64_t seed,
               std::int64_t step, torch::Device device);

  // Micro-batch `index` of this rank's; inputs and targets are on the device.
  Batch at(std::size_t index) const;

 private:
  torch::Tensor draw(std::size_t index) const;  // (B, T + 1) int64, in host memory

  const plan::Plan& plan_;
  const models::Dataset& data_;
  const std::uint64_t seed_;
  const std::int64_t step_;
  torch::Tensor on_gpu_;  // (micro-batches, B, T + 1) int64; undefined on the host device
};

// `rows` evaluation windows from `first`, of the `window_limit` windows that are spread over the
// evaluation text, on `device`.
Batch evaluation_batch(const plan::Plan& plan, const models::Dataset& data,
                       std::uint64_t window_limit, std::uint64_t first, std::int64_t rows,
                       torch::Device device);

}  // namespace sluice::train
