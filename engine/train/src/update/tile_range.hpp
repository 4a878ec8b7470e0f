#pragma once
// TileRange: one tile's place in its unit's shard. TileSpan: some tiles of a unit. Thread-safe:
// values and a free function without state.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::train {

struct TileRange {
  std::size_t unit = 0;
  std::uint64_t begin = 0;  // element of the shard
  std::uint64_t count = 0;  // elements
};

// Tiles [begin, end) of a unit.
struct TileSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The tile that begins at element `begin` of a shard of `shard_count` elements. A tile has
// `tile_count` elements; the last one of a shard may have fewer.
inline TileRange tile_at(std::size_t unit, std::uint64_t begin, std::uint64_t shard_count,
                         std::uint64_t tile_count) {
  return {unit, begin, std::min(tile_count, shard_count - begin)};
}

}  // namespace sluice::train
