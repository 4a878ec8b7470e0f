#include "sluice/base/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice {
namespace {

// A 16-bit float format, computed in double precision from its definition (IEEE 754-2019, 3.4),
// without the bit tricks of the code under test.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int least_exponent() const { return 1 - bias(); }
  std::uint32_t infinity() const { return ((1U << exponent_bits) - 1) << mantissa_bits; }

  // The value of a finite, non-negative pattern.
  double decode(std::uint32_t magnitude) const {
    const std::uint32_t mantissa = magnitude & ((1U << mantissa_bits) - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double fraction = std::ldexp(static_cast<double>(mantissa), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, least_exponent())
                         : std::ldexp(1.0 + fraction, exponent - bias());
  }

  // The pattern nearest to a finite `value`, ties to even. Scaling makes neighbours one apart, so
  // that nearbyint rounds to even in the default mode; a search by value finds the pattern.
  std::uint32_t encode(double value) const {
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    const double magnitude = std::fabs(value);
    int exponent = 0;
    std::frexp(magnitude, &exponent);  // magnitude in [2^(exponent-1), 2^exponent)
    const int step = std::max(exponent - 1, least_exponent()) - mantissa_bits;
    const double rounded = std::ldexp(std::nearbyint(std::ldexp(magnitude, -step)), step);
    const auto found = std::lower_bound(finite.begin(), finite.end(), rounded);
    return sign | static_cast<std::uint32_t>(found - finite.begin());  // past the end: infinity
  }

  std::vector<double> finite;  // values of the non-negative patterns, ascending
};

Format make_format(int exponent_bits, int mantissa_bits) {
  Format format{exponent_bits, mantissa_bits, {}};
  for (std::uint32_t bits = 0; bits < format.infinity(); ++bits) {
    format.finite.push_back(format.decode(bits));
  }
  return format;
}

struct Fp16Traits {
  using Type = Fp16;
  static Fp16 encode(float value) { return to_fp16(value); }
  static Format format() { return make_format(5, 10); }
};
struct Bf16Traits {
  using Type = Bf16;
  static Bf16 encode(float value) { return to_bf16(value); }
  static Format format() { return make_format(8, 7); }
};

template <typename Traits>
class SixteenBits : public ::testing::Test {
 protected:
  void expect_like_reference(float value) {
    ASSERT_EQ(Traits::encode(value).bits, format_.encode(static_cast<double>(value)))
        << std::hexfloat << value;
  }
  typename Traits::Type of_bits(std::uint32_t bits) {
    return typename Traits::Type{static_cast<std::uint16_t>(bits)};
  }
  const Format format_ = Traits::format();
};
using BothFormats = ::testing::Types<Fp16Traits, Bf16Traits>;
TYPED_TEST_SUITE(SixteenBits, BothFormats);

TYPED_TEST(SixteenBits, EveryPatternDecodesToItsValue) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const float value = to_fp32(this->of_bits(bits));
    ASSERT_EQ(std::signbit(value), (bits & 0x8000U) != 0) << bits;
    if (magnitude > this->format_.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else if (magnitude == this->format_.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(std::fabs(value)), this->format_.decode(magnitude)) << bits;
    }
  }
}

TYPED_TEST(SixteenBits, EveryPatternSurvivesTheWayThroughFp32) {
  const std::uint32_t quiet = 1U << static_cast<unsigned>(this->format_.mantissa_bits - 1);
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const bool nan = (bits & 0x7FFFU) > this->format_.infinity();
    ASSERT_EQ(TypeParam::encode(to_fp32(this->of_bits(bits))).bits, nan ? bits | quiet : bits);
  }
}

TYPED_TEST(SixteenBits, RoundsToNearestEvenBetweenAllNeighbours) {
  const std::vector<double>& finite = this->format_.finite;
  for (std::size_t i = 0; i < finite.size(); ++i) {
    const double spacing =
        i + 1 < finite.size() ? finite[i + 1] - finite[i] : finite[i] - finite[i - 1];
    // Exact in fp32; half of the smallest bf16 subnormal is an fp32 subnormal.
    const float middle = static_cast<float>(finite[i] + spacing / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, infinity),
          static_cast<float>(finite[i] + spacing / 4)}) {
      this->expect_like_reference(value);
      this->expect_like_reference(-value);
    }
  }
}

TYPED_TEST(SixteenBits, RoundsRandomFloatsLikeTheReference) {
  std::mt19937 random(20240229);
  for (int i = 0; i < 1000000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) this->expect_like_reference(value);
  }
}

TYPED_TEST(SixteenBits, OverflowAndInfinityGoToInfinity) {
  const float largest = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam::encode(largest).bits, this->format_.infinity());
  EXPECT_EQ(TypeParam::encode(-infinity).bits, 0x8000U | this->format_.infinity());
}

TYPED_TEST(SixteenBits, NanStaysNanWhateverItsPayload) {
  // 16 bits have no room for the lowest payload bit: plain truncation would give infinity.
  for (const std::uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FC00000U, 0x7FFFFFFFU}) {
    const std::uint32_t result = TypeParam::encode(std::bit_cast<float>(bits)).bits;
    EXPECT_GT(result & 0x7FFFU, this->format_.infinity());
    EXPECT_EQ(result >> 15U, bits >> 31U);
  }
}

TEST(DType, KnowsSizesAndNames) {
  EXPECT_EQ(size_of(DType::fp32), 4U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::fp16), 2U);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_THROW(parse_dtype("int8"), InvalidArgument);
}

}  // namespace
}  // namespace sluice
