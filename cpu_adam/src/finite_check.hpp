#pragma once
// The finite check of a step, in two parts. Each kernel adds master and first moment of an element,
// as it does to find a NaN, and looks whether the sum is finite. An infinity or a NaN never cancels
// in a sum; a sum that overflows is a false alarm. Weights in fp16, which end at 65504, are looked
// at themselves. After an alarm, the memory is searched. Thread-safe: free functions without state.
//
// Known weaknesses, each of which would cost an addition per vector: no alarm for a further moment
// that overflows alone, from a gradient element beyond 1e19, and none for a value above 3.389e38
// that only rounding to bf16 makes infinite.

#include <cstddef>

#include "kernels.hpp"
#include "tile_arguments.hpp"

namespace sluice::cpu_adam {

// The first element of the run whose master, moments or weight is non-finite; the run's count if
// there is none. The weight is rounded anew from the master: a streamed weight may not be in memory
// yet.
std::size_t first_non_finite(const TileArguments& tile, const StateLayout& layout);

}  // namespace sluice::cpu_adam
