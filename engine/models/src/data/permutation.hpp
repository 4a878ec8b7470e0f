#pragma once
// A permutation of the numbers below `count` that is computed for one number at a time, so that an
// epoch can begin anywhere: a Feistel network over the smallest even number of bits that holds
// them, whose round functions are Philox numbers of (seed, epoch), walked on until the number is
// below `count` (Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). Thread-safe:
// pure function.

#include <cstdint>

namespace sluice::models {

// The number at place `index` < count of the order of this epoch.
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t seed,
                       std::uint64_t epoch);

}  // namespace sluice::models
