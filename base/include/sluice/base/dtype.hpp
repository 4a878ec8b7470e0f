#pragma once
// Element types of shards, and exact conversions between fp32 and the 16-bit types.
// Thread-safe: free functions without state.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluice {

enum class DType { fp32, bf16, fp16 };

constexpr std::size_t size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : 2;
}
std::string_view name_of(DType dtype);
// "fp32", "bf16", "fp16" (also "float32", "bfloat16", "float16"). Throws InvalidArgument.
DType parse_dtype(std::string_view name);

// A 16-bit value as its bits; distinct types so that a bf16 span is never read as fp16.
struct Bf16 {
  std::uint16_t bits = 0;
};
struct Fp16 {
  std::uint16_t bits = 0;
};

// Round to nearest, ties to even (IEEE 754-2019, 4.3.1). NaN stays NaN: its payload's upper bits
// are kept and the quiet bit is set, as the hardware conversions do. Overflow goes to infinity.
constexpr Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16U) | 0x0040U)};
  }
  // Adding 0x7FFF, and one more where the kept part is odd, carries exactly when the tail rounds
  // up.
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
  return Bf16{static_cast<std::uint16_t>(rounded >> 16U)};
}
constexpr float to_fp32(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

Fp16 to_fp16(float value);
float to_fp32(Fp16 value);

}  // namespace sluice
