#pragma once
// Checks of tiles, before any of their memory is touched. Thread-safe: free functions without
// state.

#include <cstddef>

#include "sluice/cpu_adam/optimizer.hpp"

namespace sluice::cpu_adam {

// Elements of a master.
std::size_t elements_of(const MasterSpan& master);

// Length of the tile's master. Throws InvalidArgument unless the tile has exactly the spans that
// the optimizer needs, all of that length.
std::size_t checked_count(const OptimizerConfig& config, const Tile& tile);

// Throws InvalidArgument when two of the tile's spans, each taken as `elements` long, share memory.
void check_apart(const OptimizerConfig& config, const Tile& tile, std::size_t elements);

// Whether `b` begins where `a` ends: in memory, and in element numbers where these key the
// rounding. Tensors of a flat buffer do. One step of both together gives equal bits.
bool continues(const Tile& a, const Tile& b);

}  // namespace sluice::cpu_adam
