#pragma once
// A tile's bytes as the optimizer takes them, in the types that the plan gives them.
// Thread-safe: free functions without state.

#include <array>
#include <cstddef>
#include <span>

#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// By part of the format.
using StateSpans = std::array<std::span<std::byte>, models::kMostStateParts>;

template <typename T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

cpu_adam::GradientSpan gradient_span(std::span<std::byte> bytes, DType dtype);
// Of states in the split format.
cpu_adam::SplitMaster split_master(const StateSpans& states);
// All of the same number of elements; `weight` is not used where it is half of a split master.
cpu_adam::Tile tile_of(const plan::Plan& plan, const StateSpans& states,
                       std::span<std::byte> gradient, std::span<std::byte> weight);

}  // namespace sluice::train
