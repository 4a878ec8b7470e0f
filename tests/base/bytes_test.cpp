#include "sluice/base/bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "message_of.hpp"
#include "sluice/base/error.hpp"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = ~0ULL;

std::string error_of_parsing(const char* text) {
  return test::message_of<InvalidArgument>([&] { parse_bytes(text); });
}

TEST(CheckedArithmetic, GivesTheExactResultUpToTheLastByte) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_mul(kMax / 3, 3), kMax);
  EXPECT_EQ(checked_mul(0, kMax), 0U);
}

TEST(CheckedArithmetic, ThrowsOnOverflow) {
  EXPECT_THROW(checked_add(kMax, 1), InvalidArgument);
  EXPECT_THROW(checked_mul(kMax / 2 + 1, 2), InvalidArgument);
}

TEST(Align, WorksForAlignmentsThatAreNoPowerOfTwo) {
  EXPECT_EQ(align_up(0, 12), 0U);
  EXPECT_EQ(align_up(1, 12), 12U);
  EXPECT_EQ(align_up(12, 12), 12U);
  EXPECT_EQ(align_down(23, 12), 12U);
  EXPECT_EQ(align_down(11, 12), 0U);
}

TEST(Align, RefusesZeroAndOverflow) {
  EXPECT_THROW(align_up(1, 0), InvalidArgument);
  EXPECT_THROW(align_up(kMax - 1, 4096), InvalidArgument);
  EXPECT_EQ(align_up(kMax - 4095, 4096), kMax - 4095);
}

TEST(CeilDiv, DoesNotOverflowAtTheTop) {
  EXPECT_EQ(ceil_div(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(kMax, 1), kMax);
  EXPECT_EQ(ceil_div(0, 7), 0U);
  EXPECT_EQ(ceil_div(14, 7), 2U);
}

TEST(FormatBytes, ShowsThreeDigitsInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 2), "1.50 GiB");
  EXPECT_EQ(format_bytes(64 * kMiB), "64.0 MiB");
  EXPECT_EQ(format_bytes(512 * kMiB), "512 MiB");
  EXPECT_EQ(format_bytes(kMax), "16.0 EiB");
}

TEST(FormatBytes, NeverPrintsFourDigitsAfterRounding) {
  EXPECT_EQ(format_bytes(999 * kMiB), "999 MiB");
  EXPECT_EQ(format_bytes(1000 * kMiB), "0.98 GiB");
  EXPECT_EQ(format_bytes(10 * kKiB - 1), "10.0 KiB");
  EXPECT_EQ(format_bytes(100 * kKiB - 1), "100 KiB");
}

TEST(ParseBytes, ReadsEveryUnitInAnyCase) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("17 B"), 17U);
  EXPECT_EQ(parse_bytes("3kb"), 3000U);
  EXPECT_EQ(parse_bytes("64MiB"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("64mib"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("1.5GB"), 1500000000U);
  EXPECT_EQ(parse_bytes("2 GiB"), 2 * kGiB);
  EXPECT_EQ(parse_bytes("1TB"), 1000000000000U);
  EXPECT_EQ(parse_bytes("1TiB"), 1024 * kGiB);
  EXPECT_EQ(parse_bytes("18446744073709551615"), kMax);
}

TEST(ParseBytes, TakesALetterAloneAsABinaryUnit) {
  EXPECT_EQ(parse_bytes("64k"), 64 * kKiB);
  EXPECT_EQ(parse_bytes("64K"), 64 * kKiB);
  EXPECT_EQ(parse_bytes("512M"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("512m"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("1.5G"), kGiB + kGiB / 2);
  EXPECT_EQ(parse_bytes("2 T"), 2048 * kGiB);
}

TEST(ParseBytes, KeepsWholeBytesOfAFraction) {
  EXPECT_EQ(parse_bytes("0.5KiB"), 512U);
  EXPECT_EQ(parse_bytes("0.3KiB"), 307U);
}

TEST(ParseBytes, NamesTheNearestUnit) {
  EXPECT_THAT(error_of_parsing("64MiBs"), HasSubstr("did you mean \"MiB\"?"));
  EXPECT_THAT(error_of_parsing("64 parsec"), HasSubstr("unknown unit \"parsec\""));
  for (const char* text : {"64 parsec", "100PB", "100PiB", "1X"}) {
    EXPECT_THAT(error_of_parsing(text), ::testing::Not(HasSubstr("did you mean")));
    EXPECT_THAT(error_of_parsing(text), HasSubstr("units: B, KB, MB, GB, TB, KiB or K, MiB or M"));
  }
}

TEST(ParseBytes, SaysWhatIsWrong) {
  EXPECT_THAT(error_of_parsing("-1GB"), HasSubstr("negative"));
  EXPECT_THAT(error_of_parsing(""), HasSubstr("no number"));
  EXPECT_THAT(error_of_parsing("GB"), HasSubstr("no number"));
  EXPECT_THAT(error_of_parsing("1.2.3GB"), HasSubstr("two decimal points"));
  EXPECT_THAT(error_of_parsing("1.5"), HasSubstr("a byte cannot be divided"));
  EXPECT_THAT(error_of_parsing("18446744073709551616"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(error_of_parsing("16777216.5TiB"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(error_of_parsing("16777216TiB"), HasSubstr("overflows 64 bits"));
}

TEST(Overlap, IsOfBytesInBothRanges) {
  const std::array<std::byte, 8> memory{};
  const std::span<const std::byte> all(memory);
  EXPECT_TRUE(overlap(all, all.subspan(3, 1)));
  EXPECT_TRUE(overlap(all.first(4), all.subspan(3)));
  EXPECT_FALSE(overlap(all.first(4), all.subspan(4)));
  EXPECT_FALSE(overlap(all, all.subspan(3, 0)));
  EXPECT_FALSE(overlap(all.subspan(3, 0), all));
}

}  // namespace
}  // namespace sluice
