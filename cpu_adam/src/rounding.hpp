#pragma once
// Bits of the layouts with 16-bit elements, one element at a time. The vector kernels repeat these
// definitions; the kernel of a GPU calls them, so they are constexpr. Thread-safe: free functions
// without state.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "sluice/base/dtype.hpp"
#include "sluice/cpu_adam/optimizer.hpp"
#include "sluice/cpu_adam/step_arguments.hpp"

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
// The 16 bits of the noise that round moment `index`. The array is local: a GPU's code has no
// global ones of the host, and nvcc compiles a read of one to a trap, without a warning.
constexpr int noise_shift(std::size_t index) {
  constexpr int kNoiseShift[kMostMoments] = {0, 16, 8};
  return kNoiseShift[index];
}
constexpr std::uint32_t noise_of_moment(std::uint32_t noise, std::size_t index) {
  return (noise >> noise_shift(index)) & 0xFFFFU;
}

// The key of a run that begins at element `first` of a step.
RoundingKey rounding_key(const Step& step, std::uint64_t first);

// Rounds up with a probability equal to the truncated part, in units of the last place, so the
// expected result is the value. `noise`: 0 to 65535. Infinities and the NaN of one_nan() stay
// unchanged.
constexpr Bf16 round_stochastically(float value, std::uint32_t noise) {
  return Bf16{static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) + noise) >> 16U)};
}

// The bits without the sign: above kInfinityBits for a NaN.
constexpr std::uint32_t kInfinityBits = 0x7F800000U;
constexpr std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
}
constexpr bool is_finite(float value) {
  return magnitude_bits(value) < kInfinityBits;
}
// Replaces every NaN by one: payload and sign of a NaN depend on the instruction and the compiler.
constexpr float one_nan(float value) {
  return magnitude_bits(value) > kInfinityBits ? std::bit_cast<float>(0x7FC00000U) : value;
}

// split() of the public header. Rounding a NaN's payload could carry into the exponent and overflow
// it.
constexpr SplitValue halves_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(one_nan(value));
  return {Bf16{static_cast<std::uint16_t>((bits + 0x8000U) >> 16U)},
          static_cast<std::uint16_t>(bits)};
}
// join() of the public header. Adds the lower half as a signed number: from 0x8000 on, split()
// rounded the weight up.
constexpr float joined(SplitValue value) {
  const auto low = static_cast<std::int16_t>(value.low);
  return std::bit_cast<float>((std::uint32_t{value.weight.bits} << 16U) +
                              static_cast<std::uint32_t>(std::int32_t{low}));
}

}  // namespace sluice::cpu_adam
