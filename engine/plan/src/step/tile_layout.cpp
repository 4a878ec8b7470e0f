#include "sluice/plan/tile_layout.hpp"

#include <algorithm>

#include "sluice/base/bytes.hpp"
#include "sluice/offload/memory_pool.hpp"

namespace sluice::plan {

using offload::Tier;

TileLayout tile_layout(const std::vector<UnitPlacement>& units, const models::StateFormat& format,
                       const TileTypes& types, std::uint64_t tile_elements) {
  const auto any = [&](const auto& needs) {
    return std::any_of(units.begin(), units.end(),
                       [&](const UnitPlacement& unit) { return !unit.frozen && needs(unit); });
  };
  TileLayout tile;
  const auto add = [&](bool needed, std::size_t element_bytes) {
    const std::uint64_t offset = tile.total;
    if (needed)
      tile.total += align_up(checked_mul(tile_elements, element_bytes), offload::kPageBytes);
    return offset;
  };
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    const bool needed = any([&](const UnitPlacement& unit) {
      return place_of_part(unit, format, part) == PartPlace::tile;
    });
    tile.states[part] = add(needed, format.part(part).element_bytes);
  }
  tile.gradient = add(any(tile_holds_gradient), size_of(types.gradient));
  tile.weight =
      add(any([&](const UnitPlacement& unit) { return tile_holds_weights(unit, format); }),
          size_of(types.weight));
  // Everything is in memory, but an update still sends bytes: a tile of one page stands for the
  // transfer.
  const bool moves = any([](const UnitPlacement& unit) {
    return unit.states == Tier::nvme || update_sends_weights(unit);
  });
  if (tile.total == 0 && moves) tile.total = offload::kPageBytes;
  return tile;
}

DeviceTileLayout device_tile_layout(const std::vector<UnitPlacement>& units,
                                    const models::StateFormat& format, DType gradient,
                                    std::uint64_t tile_elements) {
  DeviceTileLayout tile;
  if (std::none_of(units.begin(), units.end(), device_can_update)) return tile;
  const auto add = [&](std::uint64_t size_bytes) {
    const std::uint64_t offset = tile.total;
    tile.total += align_up(size_bytes, offload::kPageBytes);
    return offset;
  };
  for (std::size_t part = 0; part < format.part_count(); ++part) {
    const bool is_weight = format.is_split() && part == 0;
    if (!is_weight)
      tile.states[part] = add(checked_mul(tile_elements, format.part(part).element_bytes));
  }
  tile.gradient = add(checked_mul(tile_elements, size_of(gradient)));
  return tile;
}

}  // namespace sluice::plan
