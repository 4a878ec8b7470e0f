#pragma once
// Element types of shards, and exact conversions between fp32 and the 16-bit types.
// Thread-safe: free functions without state.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class DType { fp32, bf16, fp16 };

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}
std::string_view name_of(DType dtype);
// Parses "fp32", "bf16", "fp16" (also "float32", "bfloat16", "float16", "half"). Throws
// InvalidArgument for any other name.
DType parse_dtype(std::string_view name);

// The bits of a 16-bit value. The types differ, so a span of bf16 is never read as fp16.
struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

// to_bf16 and to_fp16 round to nearest, ties to even (IEEE 754-2019, 4.3.1). A NaN keeps the upper
// bits of its payload and gets the quiet bit, as in hardware conversions. Overflow becomes
// infinity. to_fp32 is exact.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16U) | 0x0040U)};
  }
  // Adding 0x7FFF, plus one where the upper half is odd, carries into the upper half exactly when
  // the lower half rounds up.
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
  return Bf16{static_cast<std::uint16_t>(rounded >> 16U)};
}
constexpr float to_fp32(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

Fp16 to_fp16(float value);
float to_fp32(Fp16 value);

}  // namespace sluice
