#pragma once
// Philox 4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): a
// counter-based generator. A number depends on key and counter only, so any part of a sequence can
// be made by anyone, in any order. Thread-safe: pure functions and plain values.

#include <array>
#include <cstdint>

namespace sluice::models {

using PhiloxBlock = std::array<std::uint32_t, 4>;
PhiloxBlock philox4x32(const PhiloxBlock& counter, const std::array<std::uint32_t, 2>& key);

// What numbers are drawn for: streams of different domains are unrelated, whatever the seed.
enum class PhiloxDomain : std::uint32_t { initial_values = 1, windows = 2, dropout = 3 };

// A sequence of blocks of one purpose, by index.
struct PhiloxStream {
  std::array<std::uint32_t, 2> key{};
  std::array<std::uint32_t, 2> high{};  // upper half of every counter

  PhiloxBlock block(std::uint64_t index) const {
    return philox4x32({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U),
                       high[0], high[1]},
                      key);
  }
};
// The stream of (domain, seed, ids): key and upper half of the counter are themselves drawn from
// Philox, so streams whose ids differ anywhere share no numbers but by chance (2^-128 for each
// pair).
PhiloxStream philox_stream(PhiloxDomain domain, std::uint64_t seed,
                           const std::array<std::uint64_t, 4>& ids);

}  // namespace sluice::models
