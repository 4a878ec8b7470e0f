#pragma once
// The sum over ranks that does not depend on the transport. Not installed. Thread-safe: free
// functions without state.

#include <cstddef>
#include <span>

#include "sluice/base/executor.hpp"
#include "sluice/zero/rank_call.hpp"

namespace sluice::zero {

// Element-wise sum of `parts`, one for each rank in rank order, into `to`. 16-bit elements and fp32
// are summed in fp32 and rounded once; fp64 in fp64. `to` may be one of the parts; no other parts
// overlap. No alignment is needed. A large sum is shared with `executor`, where there is one: which
// thread sums an element changes no bit.
void sum_in_rank_order(std::span<const std::byte* const> parts, std::byte* to, std::size_t count,
                       Element element, Executor* executor);

}  // namespace sluice::zero
