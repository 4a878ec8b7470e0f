#include "data/permutation.hpp"

#include <bit>
#include <cassert>

#include "sluice/models/philox.hpp"

namespace sluice::models {

std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t seed,
                       std::uint64_t epoch) {
  assert(index < count);
  constexpr std::uint64_t kRounds = 6;
  const unsigned half_bits = (static_cast<unsigned>(std::bit_width(count - 1)) + 1) / 2;
  if (half_bits == 0) return 0;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  const PhiloxStream stream = philox_stream(PhiloxDomain::epochs, seed, {epoch, 0, 0, 0});
  std::uint64_t value = index;
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      // half_bits <= 32, so that round and number share the index of a block.
      const std::uint64_t mixed = stream.block(round << 32U | right)[0] & mask;
      const std::uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = left << half_bits | right;
  } while (value >= count);
  return value;
}

}  // namespace sluice::models
