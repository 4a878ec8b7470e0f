#include "update/optimizer_tile.hpp"

namespace sluice::train {

namespace {

using Bytes = std::span<std::byte>;

cpu_adam::WeightSpan weight_span(Bytes bytes, DType dtype) {
  if (dtype == DType::bf16) return as<Bf16>(bytes);
  if (dtype == DType::fp16) return as<Fp16>(bytes);
  return as<float>(bytes);
}

cpu_adam::MomentSpan moment_span(Bytes bytes, const models::StateFormat& format) {
  if (format.moments == config::MomentFormat::bf16) return as<Bf16>(bytes);
  return as<float>(bytes);
}

}  // namespace

cpu_adam::GradientSpan gradient_span(Bytes bytes, DType dtype) {
  if (dtype == DType::bf16) return std::span<const Bf16>(as<Bf16>(bytes));
  if (dtype == DType::fp16) return std::span<const Fp16>(as<Fp16>(bytes));
  return std::span<const float>(as<float>(bytes));
}

cpu_adam::SplitMaster split_master(const StateSpans& states) {
  return {as<Bf16>(states[0]), as<std::uint16_t>(states[1])};
}

cpu_adam::Tile tile_of(const plan::Plan& plan, const StateSpans& states, Bytes gradient,
                       Bytes weight) {
  const models::StateFormat& format = plan.state_format;
  cpu_adam::Tile tile;
  if (format.is_split()) {
    tile.master = split_master(states);
  } else {
    tile.master = as<float>(states[0]);
    tile.weight = weight_span(weight, plan.compute_dtype);
  }
  const std::size_t first = format.first_moment();
  tile.moments = {moment_span(states[first], format), moment_span(states[first + 1], format)};
  tile.gradient = gradient_span(gradient, plan.compute_dtype);
  return tile;
}

}  // namespace sluice::train
