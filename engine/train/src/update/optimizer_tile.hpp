#pragma once
// Views of a tile's bytes in the types that the optimizer takes. The plan says which types these
// are. Thread-safe: free functions without state.

#include <array>
#include <cstddef>
#include <span>

#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::train {

// Bytes of a tile's states, by part of the format.
using StateSpans = std::array<std::span<std::byte>, models::kMostStateParts>;

template <typename T>
std::span<T> as(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

cpu_adam::GradientSpan gradient_span(std::span<std::byte> bytes, DType dtype);
// The master of states in the split format.
cpu_adam::SplitMaster split_master(const StateSpans& states);
// All arguments have the same number of elements. `weight` is not used if the master is split,
// because the weight is then half of the master.
cpu_adam::Tile tile_of(const plan::Plan& plan, const StateSpans& states,
                       std::span<std::byte> gradient, std::span<std::byte> weight);

}  // namespace sluice::train
