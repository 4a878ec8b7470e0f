#pragma once
// The sum of gradients that travel in another type, or divided. Not installed. Thread-safe: free
// functions without state.

#include <cstddef>
#include <span>
#include <string>

#include "sluice/base/dtype.hpp"
#include "sluice/base/executor.hpp"
#include "sluice/zero/communicator.hpp"
#include "sluice/zero/sharded_unit.hpp"

namespace sluice::zero {

template <typename Byte>
struct Elements {
  Byte* bytes;
  DType dtype;
};

// Factors for an element on its way, applied in fp32; one of them is 1.
struct Scaling {
  double multiplier = 1;
  double divisor = 1;
};

// Writes each element of `from`, scaled in fp32 and rounded once, to `to`. They may be the same
// memory if the types are equal; else they do not overlap. No alignment is needed. A null executor:
// the calling thread does all.
void convert_elements(Elements<const std::byte> from, Elements<std::byte> to, std::size_t count,
                      const Scaling& scaling, Executor* executor);

// As Communicator::reduce_scatter of `full`, whose elements are of `dtype`, but what is sent has
// the format's type and division. The sum is rounded to the type that is sent, then to `dtype`.
// Where the types differ, the sum is taken in pieces, by a call each, and 1 MiB of host memory for
// each rank is held meanwhile. Blocks; throws the communicator's errors.
void sum_over_wire(Communicator& ranks, std::span<std::byte> full, DType dtype,
                   const SumFormat& format, Executor* executor, const std::string& label);

}  // namespace sluice::zero
