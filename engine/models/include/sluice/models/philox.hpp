#pragma once
// Philox 4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): a
// counter-based generator. A number depends on key and counter only, so any part of a sequence can
// be generated in any order. Thread-safe: values and pure functions.

#include <array>
#include <cstdint>

namespace sluice::models {

using PhiloxBlock = std::array<std::uint32_t, 4>;
// The block of four numbers for `counter` and `key`.
PhiloxBlock philox4x32(const PhiloxBlock& counter, const std::array<std::uint32_t, 2>& key);

// The purpose of numbers. Streams of different domains are unrelated for every seed.
enum class PhiloxDomain : std::uint32_t {
  initial_values = 1,
  windows = 2,
  dropout = 3,
  epochs = 4
};

// A sequence of blocks, by index.
struct PhiloxStream {
  std::array<std::uint32_t, 2> key{};
  std::array<std::uint32_t, 2> high{};  // upper half of every counter

  PhiloxBlock block(std::uint64_t index) const {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U),
                       high[0], high[1]},
                      key);
  }
};
// The stream of (domain, seed, ids). Philox generates the key and the upper half of the counter, so
// streams with different ids coincide only by chance (2^-128 for each pair).
PhiloxStream philox_stream(PhiloxDomain domain, std::uint64_t seed,
                           const std::array<std::uint64_t, 4>& ids);

}  // namespace sluice::models
