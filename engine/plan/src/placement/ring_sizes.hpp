#pragma once
// Sizes of the host rings that carry bytes to and from files: the sizes that the configuration asks
// for, within the engine's minimum. Thread-safe: free functions without state.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// Sizes of the host rings, before a placement says which of them are needed.
struct RingSizes {
  std::uint64_t update_tile_elements = 0;
  int update_tiles = 3;
  std::uint64_t mover_tile_bytes = 0;
  int mover_tiles = 3;
  int gradient_slots = 0;  // 0: every unit has its own home for its gradient
};
// The updater reads one slot while backward fills the other.
inline constexpr int kLeastGradientSlots = 2;

// The sizes that the configuration allows, the largest first: the tiles that keep the drives and
// the optimizer's threads busy, then less. Every tile of the optimizer step is a multiple of
// StateFormat::granularity_count(), except one that holds a whole unit.
std::vector<RingSizes> ring_size_ladder(const Plan& plan);
// Tiles of fewer elements are small.
inline constexpr std::uint64_t kUsualTileElements = std::uint64_t{1} << 20U;
// The bytes that tiles of at most the usual size may take: a small model on a drive is there to
// save memory.
std::uint64_t bytes_for_small_tiles(const Plan& plan);
// The sizes that a placement tries. The first are the largest of the ladder that leave half of the
// host budget for homes, and suit the size of the model; the others are the smallest. Both have
// gradient slots where updates begin as gradients arrive, and the last ones have none: a few large
// units may need less without.
std::vector<RingSizes> ring_sizes_to_try(const Plan& plan);

// One line for each limit of the configuration that the placed plan exceeds, because the engine
// needs more: the value asked for, the value used, and the reason.
std::vector<std::string> raised_limits(const Plan& plan);
// Why the tiles of the optimizer step have their number and size. Empty: they are the usual ones,
// or there are none.
std::string why_these_tiles(const Plan& plan);

}  // namespace sluice::plan
