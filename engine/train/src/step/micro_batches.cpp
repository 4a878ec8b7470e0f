#include "step/micro_batches.hpp"

#include <vector>

namespace sluice::train {

namespace {

// (B, T + 1) to inputs and targets.
Batch split(const torch::Tensor& windows) {
  const std::int64_t length = windows.size(1) - 1;
  return {windows.narrow(1, 0, length).contiguous(), windows.narrow(1, 1, length).contiguous()};
}

std::span<std::int64_t> row_of(const torch::Tensor& windows, std::int64_t row) {
  const std::int64_t length = windows.size(1);
  return {windows.data_ptr<std::int64_t>() + row * length, static_cast<std::size_t>(length)};
}

}  // namespace

std::int64_t number_in_step(const plan::Plan& plan, std::size_t index) {
  return static_cast<std::int64_t>(index) * plan.config.world_size + plan.config.rank;
}

MicroBatches::MicroBatches(const plan::Plan& plan, const models::Dataset& data, std::uint64_t seed,
                           std::int64_t step, torch::Device device)
    : plan_(plan), data_(data), seed_(seed), step_(step) {
  if (!plan.device.gpu) return;
  std::vector<torch::Tensor> drawn;
  for (std::int64_t m = 0; m < plan.config.gradient_accumulation_steps; ++m)
    drawn.push_back(draw(static_cast<std::size_t>(m)));
  on_gpu_ = torch::stack(drawn).to(device);
}

torch::Tensor MicroBatches::draw(std::size_t index) const {
  const std::int64_t rows = plan_.config.micro_batch_size;
  torch::Tensor windows = torch::empty({rows, plan_.model.n_positions + 1}, torch::kInt64);
  const std::int64_t first = number_in_step(plan_, index) * rows;
  for (std::int64_t row = 0; row < rows; ++row) {
    data_.draw(seed_, step_, static_cast<std::uint64_t>(first + row), row_of(windows, row));
  }
  return windows;
}

Batch MicroBatches::at(std::size_t index) const {
  return split(on_gpu_.defined() ? on_gpu_[static_cast<std::int64_t>(index)] : draw(index));
}

Batch evaluation_batch(const plan::Plan& plan, const models::Dataset& data,
                       std::uint64_t window_limit, std::uint64_t first, std::int64_t rows,
                       torch::Device device) {
  torch::Tensor windows = torch::empty({rows, plan.model.n_positions + 1}, torch::kInt64);
  for (std::int64_t row = 0; row < rows; ++row)
    data.eval_window(first + static_cast<std::uint64_t>(row), window_limit, row_of(windows, row));
  return split(windows.to(device));
}

}  // namespace sluice::train
