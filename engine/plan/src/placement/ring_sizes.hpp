#pragma once
// The rings of host tiles that carry bytes to and from files: how many tiles of which size the
// configuration asks for, and what the engine cannot do with less of.

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/offload/swap_store.hpp"
#include "sluice/plan/plan.hpp"

namespace sluice::plan {

// The largest tile of the optimizer step, in elements. Smaller ones are this divided by two or
// four, multiples of StateFormat::granularity_count() in any case.
inline constexpr std::uint64_t kLargestUpdateTileCount = 1U << 20U;

// Sizes of the host rings.
struct Rings {
  std::uint64_t update_tile_count = 0;
  int update_tiles = 3;
  std::uint64_t mover_tile_bytes = 0;
  int mover_tiles = 3;
  int gradient_slots = 0;  // 0: every unit has a home for its gradients
};
// One is updated from, one is filled.
inline constexpr int kLeastGradientSlots = 2;

// What the configuration allows, the largest rings first.
std::vector<Rings> ring_ladder(const Plan& plan);
// The first of the ladder that leaves half of the host budget to what has its home there; with
// slots for gradients where updates begin as these arrive.
Rings first_rings(const Plan& plan, std::vector<Rings> ladder);

// One line for each limit of the configuration that the placed plan is above, since the engine
// cannot keep it: what was asked for, what is used, and why.
std::vector<std::string> raised_limits(const Plan& plan);

}  // namespace sluice::plan
