#pragma once
// Bits of the layouts with 16-bit elements, one element at a time: the definition that the vector
// kernels repeat. Thread-safe: free functions without state.

#include <bit>
#include <cstdint>

#include "kernels.hpp"

namespace sluice::cpu_adam {

// 32 random bits for the element whose number's low half is `low`: two rounds of xor-shift and
// multiply, after which every bit depends on every bit of the number about evenly (constants of the
// "lowbias32" search, C. Wellons 2018), with a key before each. With the first key alone two steps
// would have the same noise in another order.
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
// The 16 of them that round moment `index`.
constexpr std::uint32_t kNoiseShift[kMostMoments] = {0, 16, 8};
constexpr std::uint32_t noise_of_moment(std::uint32_t noise, std::size_t index) {
  return (noise >> kNoiseShift[index]) & 0xFFFFU;
}

// The key of a run that begins at element `first` of a step.
RoundingKey rounding_key(const Step& step, std::uint64_t first);

// Up with the probability of what is cut off, in units of the last place that stays: the expected
// value is the value. `noise`: 0 to 65535. The NaN of one_nan and infinities stay as they are.
constexpr Bf16 round_stochastically(float value, std::uint32_t noise) {
  return Bf16{static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + noise) >> 16U)};
}

}  // namespace sluice::cpu_adam
