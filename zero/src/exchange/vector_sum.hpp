#pragma once
// Sums over ranks by the vectors of this processor. Not installed. Thread-safe: free functions
// without state.

#include <cstddef>
#include <span>

#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

// Sums elements of `parts` from `begin` on as sum_in_rank_order() does, bit for bit but for the
// payload of a NaN. Returns where it stopped: at `end` or up to some vectors before it, and at
// `begin` where the processor has no vectors that this is built for. `element`: any but bytes.
std::size_t sum_vectors(std::span<const std::byte* const> parts, std::byte* to, std::size_t begin,
                        std::size_t end, Element element);

}  // namespace sluice::zero
