#include "sluice/base/dtype.hpp"

#include <string>

#include "sluice/base/error.hpp"

namespace sluice {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  if (name == "fp32" || name == "float32") return DType::fp32;
  if (name == "bf16" || name == "bfloat16") return DType::bf16;
  if (name == "fp16" || name == "float16" || name == "half") return DType::fp16;
  throw InvalidArgument("\"" + std::string(name) + "\" is not a data type (fp32, bf16, fp16)");
}

Fp16 to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {  // NaN: keep the payload's upper bits, set the quiet bit
    return Fp16{static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13U) & 0x03FFU))};
  }
  // 65520 is halfway between the largest finite half (65504) and 2^16: from here on, infinity.
  if (magnitude >= 0x477FF000U) return Fp16{static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (magnitude >= 0x38800000U) {  // at least 2^-14: a normal half
    const std::uint32_t rounded = magnitude + 0x0FFFU + ((magnitude >> 13U) & 1U);
    return Fp16{static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13U))};
  }
  // Subnormal or zero: adding 0.5 in fp32 leaves the value in units of 2^-24 in the low mantissa
  // bits, rounded to nearest even by the addition itself.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  return Fp16{
      static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U))};
}

float to_fp32(Fp16 value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x03FFU;
  if (exponent == 0x1FU) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

}  // namespace sluice
