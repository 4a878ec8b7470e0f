#include "terminal/byte_progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "memory_stream.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"

namespace sluice::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// The output when half of 4 GiB is done after `seconds`, as the first line.
std::string shown_at_half(double seconds, const TerminalFacts& terminal) {
  MemoryStream out;
  Console console(out.get(), out.get(), terminal);
  double now = 100;
  ByteProgress progress(console, "checking", [&now] { return now; });
  now += seconds;
  progress.show(2 * kGiB, 4 * kGiB);
  return out.text();
}

TEST(ByteRate, IsInDecimalGigabytes) {
  EXPECT_EQ(format_byte_rate(3'000'000'000, 2), "1.50 GB/s");
  EXPECT_EQ(format_byte_rate(0, 2), "0.00 GB/s");
  EXPECT_EQ(format_byte_rate(1, 0), "? GB/s");
}

TEST(ByteProgress, IsABarOnATerminal) {
  EXPECT_EQ(shown_at_half(2, {true, 80, false}),
            "checking  [##########..........]  2.00 GiB of 4.00 GiB   1.07 GB/s  2s left    ");
  EXPECT_THAT(shown_at_half(2, {true, 80, true}), HasSubstr("▕██████████          ▏"));
}

TEST(ByteProgress, IsAPlainLineElsewhere) {
  EXPECT_EQ(shown_at_half(10, TerminalFacts{}),
            "checking  2.00 GiB of 4.00 GiB  0.21 GB/s  10s left\n");
}

TEST(ByteProgress, IsNotShownMoreOftenThanItCanBeRead) {
  EXPECT_EQ(shown_at_half(0.05, {true, 80, false}), "");
  EXPECT_EQ(shown_at_half(9.9, TerminalFacts{}), "");
}

TEST(ByteProgress, FitsEveryWidthAndSaysHowFarItIs) {
  for (const bool unicode : {false, true}) {
    for (int columns = 40; columns <= 160; ++columns) {
      const std::string line = shown_at_half(2, {true, columns, unicode});
      EXPECT_LT(display_width(line), static_cast<std::size_t>(columns)) << line;
      EXPECT_THAT(line, HasSubstr("2.00 GiB of 4.00 GiB"));
    }
  }
}

TEST(ByteProgress, KeepsItsLengthWhateverTheNumbers) {
  const TerminalFacts facts = {true, 80, true};
  const std::size_t width = display_width(shown_at_half(0.2, facts));
  for (const double seconds : {0.15, 2.0, 77.0, 3000.0, 30'000.0}) {
    EXPECT_EQ(display_width(shown_at_half(seconds, facts)), width) << shown_at_half(seconds, facts);
  }
}

TEST(ByteProgress, LeavesNoBarBehind) {
  MemoryStream out;
  Console console(out.get(), out.get(), {true, 80, false});
  {
    double now = 0;
    ByteProgress progress(console, "checking", [&now] { return now; });
    now = 1;
    progress.show(0, 4 * kGiB);
    EXPECT_THAT(out.text(), HasSubstr("0 B of 4.00 GiB   0.00 GB/s"));
  }
  EXPECT_THAT(out.text(), EndsWith("\r\x1b[K"));
}

}  // namespace
}  // namespace sluice::cli
