#pragma once
// The layout of one tile of the optimizer step in host memory. Thread-safe: values and a free
// function without state.

#include <array>
#include <cstdint>
#include <vector>

#include "sluice/base/dtype.hpp"
#include "sluice/models/state_format.hpp"
#include "sluice/plan/unit_placement.hpp"

namespace sluice::plan {

// Elements that a thread takes at a time, of a tile or of a unit that needs none. An update of them
// reads and writes 1.75 MiB, with Adam's fp32 states and 16-bit gradient and weight. Large enough
// to hide that a thread takes them, small enough that the threads end together.
inline constexpr std::uint64_t kPieceElements = 65'536;

// Byte offsets of the parts in a tile. The tile has room for a part when some unit needs the part.
struct TileLayout {
  std::array<std::uint64_t, models::kMostStateParts> states{};
  std::uint64_t gradient = 0;
  std::uint64_t weight = 0;
  std::uint64_t total = 0;  // bytes of the whole tile; 0: no update needs a tile
};

// Data types of what a tile holds beside the states.
struct TileTypes {
  DType weight = DType::bf16;
  DType gradient = DType::bf16;
};

// Lays out a tile of `tile_elements` elements for these units. Every part begins on a page.
TileLayout tile_layout(const std::vector<UnitPlacement>& units, const models::StateFormat& format,
                       const TileTypes& types, std::uint64_t tile_elements);

// Byte offsets of the parts in a tile of the device's memory: what device_can_update() units have
// in host memory. Weights are updated in place.
struct DeviceTileLayout {
  std::array<std::uint64_t, models::kMostStateParts> states{};
  std::uint64_t gradient = 0;
  std::uint64_t total = 0;  // 0: the device can update no unit by tiles
};
DeviceTileLayout device_tile_layout(const std::vector<UnitPlacement>& units,
                                    const models::StateFormat& format, DType gradient,
                                    std::uint64_t tile_elements);

}  // namespace sluice::plan
