#pragma once
// Parts of a run of elements. Thread-safe: values and free functions without shared state.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "sluice/base/dtype.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"

namespace sluice::cpu_adam {

// The types of a tile's states.
struct StateLayout {
  MasterLayout master = MasterLayout::fp32;
  std::size_t moments = 0;
  std::size_t moment_bytes = sizeof(float);  // per element
};

constexpr std::size_t size_of(WeightType type) {
  if (type == WeightType::none) return 0;
  return type == WeightType::fp32 ? 4 : 2;
}

// Bytes of an element of TileArguments::master.
constexpr std::size_t master_bytes(MasterLayout layout) {
  return layout == MasterLayout::split ? sizeof(Bf16) : sizeof(float);
}

inline void* offset(void* begin, std::size_t bytes) {
  return begin == nullptr ? nullptr : static_cast<std::byte*>(begin) + bytes;
}

// The run from element `first` on. The caller sets its count.
inline TileArguments advanced(TileArguments tile, const StateLayout& layout, std::size_t first) {
  tile.master = offset(tile.master, first * master_bytes(layout.master));
  if (layout.master == MasterLayout::split) tile.low += first;
  for (std::size_t k = 0; k < layout.moments; ++k)
    tile.moments[k] = offset(tile.moments[k], first * layout.moment_bytes);
  tile.gradient =
      static_cast<const std::byte*>(tile.gradient) + first * size_of(tile.gradient_type);
  tile.weight = offset(tile.weight, first * size_of(tile.weight_type));
  tile.rounding.first += static_cast<std::uint32_t>(first);
  return tile;
}

// PartOfVector: a copy of up to kMost elements, padded with zeros, for a kernel that only handles
// whole vectors. The original tile outlives it.
class PartOfVector {
 public:
  static constexpr std::size_t kMost = 16;

  PartOfVector(const TileArguments& tile, const StateLayout& layout)
      : tile_(tile), copy_(tile), layout_(layout) {
    copy_.master = take(0, tile.master, master_bytes(layout.master));
    if (layout.master == MasterLayout::split)
      copy_.low = static_cast<std::uint16_t*>(take(1, tile.low, sizeof(std::uint16_t)));
    for (std::size_t k = 0; k < layout.moments; ++k)
      copy_.moments[k] = take(2 + k, tile.moments[k], layout.moment_bytes);
    copy_.gradient = take(2 + kMostMoments, tile.gradient, size_of(tile.gradient_type));
    copy_.weight = memory_[3 + kMostMoments].bytes;
    copy_.store = WeightStore::cached;
  }

  const TileArguments& arguments() const { return copy_; }

  void copy_back() const {
    give(tile_.master, copy_.master, master_bytes(layout_.master));
    if (layout_.master == MasterLayout::split) give(tile_.low, copy_.low, sizeof(std::uint16_t));
    for (std::size_t k = 0; k < layout_.moments; ++k)
      give(tile_.moments[k], copy_.moments[k], layout_.moment_bytes);
    give(tile_.weight, copy_.weight, size_of(tile_.weight_type));
  }

 private:
  struct Line {
    alignas(64) std::byte bytes[kMost * sizeof(float)] = {};
  };
  void* take(std::size_t line, const void* from, std::size_t element_bytes) {
    std::memcpy(memory_[line].bytes, from, tile_.count * element_bytes);
    return memory_[line].bytes;
  }
  void give(void* to, const void* from, std::size_t element_bytes) const {
    if (element_bytes > 0) std::memcpy(to, from, tile_.count * element_bytes);
  }

  const TileArguments& tile_;
  TileArguments copy_;
  const StateLayout layout_;
  std::array<Line, 4 + kMostMoments> memory_;  // master, low, moments, gradient, weight
};

}  // namespace sluice::cpu_adam
