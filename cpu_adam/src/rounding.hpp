#pragma once
// Bits of the layouts with 16-bit elements, one element at a time. The vector kernels repeat these
// definitions. Thread-safe: free functions without state.

#include <bit>
#include <cstdint>

#include "kernels.hpp"

namespace sluice::cpu_adam {

// 32 random bits for the element whose number has the low half `low`. Two rounds of xor-shift and
// multiply (constants of the "lowbias32" search, C. Wellons 2018) make every bit depend about
// evenly on every bit of the number. A key enters before each round: with the first key alone, two
// steps would get equal noise in another order.
constexpr std::uint32_t kMix1 = 0x7FEB352DU;
constexpr std::uint32_t kMix2 = 0x846CA68BU;
constexpr std::uint32_t noise_of(const RoundingKey& key, std::uint32_t low) {
  std::uint32_t x = low ^ key.keys[0];
  x ^= x >> 16U;
  x *= kMix1;
  x ^= x >> 15U;
  x ^= key.keys[1];
  x *= kMix2;
  return x ^ (x >> 16U);
}
// The 16 bits of the noise that round moment `index`.
constexpr std::uint32_t kNoiseShift[kMostMoments] = {0, 16, 8};
constexpr std::uint32_t noise_of_moment(std::uint32_t noise, std::size_t index) {
  return (noise >> kNoiseShift[index]) & 0xFFFFU;
}

// The key of a run that begins at element `first` of a step.
RoundingKey rounding_key(const Step& step, std::uint64_t first);

// Rounds up with a probability equal to the truncated part, in units of the last place, so the
// expected result is the value. `noise`: 0 to 65535. Infinities and the NaN of one_nan() stay
// unchanged.
constexpr Bf16 round_stochastically(float value, std::uint32_t noise) {
  return Bf16{static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + noise) >> 16U)};
}

}  // namespace sluice::cpu_adam
