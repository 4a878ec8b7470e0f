#pragma once
// What a tile must be before anything of it is touched. Thread-safe: free functions without state.

#include <cstddef>

#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

std::size_t elements_of(const MasterSpan& master);

// Throws InvalidArgument unless the tile has what the optimizer needs, all of the master's length.
// Returns that length.
std::size_t checked_count(const OptimizerConfig& config, const Tile& tile);

// Throws InvalidArgument when two of the tile's spans have memory in common, or would have, were
// each `elements` long.
void check_apart(const OptimizerConfig& config, const Tile& tile, std::size_t elements);

}  // namespace sluice::cpu_adam
