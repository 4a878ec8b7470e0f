#include "sluice/base/text.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"optimizer", "offload_param", "scheduler",
                                                    "lr"};

TEST(Lower, ChangesAsciiLettersOnly) {
  EXPECT_EQ(lower(""), "");
  EXPECT_EQ(lower("AZ az [@`{ 09 \u00c4"), "az az [@`{ 09 \u00c4");
}

TEST(EqualIgnoringCase, FindsTextsThatDifferInCaseAlone) {
  EXPECT_TRUE(equal_ignoring_case("", ""));
  EXPECT_TRUE(equal_ignoring_case("AdamW", "aDAMw"));
  EXPECT_FALSE(equal_ignoring_case("Adam", "AdamW")) << "a begin is not the whole";
  EXPECT_FALSE(equal_ignoring_case("AdamW", "Adam"));
  EXPECT_FALSE(equal_ignoring_case("[", "{")) << "32 apart, but no letters";
  EXPECT_FALSE(equal_ignoring_case("\u00c4", "\u00e4"));
}

TEST(NearestName, FindsMisspellings) {
  EXPECT_EQ(nearest_name("optimiser", kNames), "optimizer");
  EXPECT_EQ(nearest_name("ofload_params", kNames), "offload_param");
  EXPECT_EQ(nearest_name("SCHEDULER", kNames), "scheduler");
}

TEST(NearestName, CountsASwapOfNeighboursAsOneChange) {
  constexpr std::array<std::string_view, 2> kPair = {"abd", "bac"};
  // "abc" is one change from both candidates; from "bac" only because a swap counts once. The first
  // candidate wins.
  EXPECT_EQ(nearest_name("abc", kPair), "abd");
  constexpr std::array<std::string_view, 1> kSwapped = {"bac"};
  EXPECT_EQ(nearest_name("abc", kSwapped), "bac");
}

TEST(NearestName, IsEmptyWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("zzzzzz", kNames), "");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

TEST(DidYouMean, IsEmptyWithoutAName) {
  EXPECT_EQ(did_you_mean("Adam"), "; did you mean \"Adam\"?");
  EXPECT_EQ(did_you_mean(""), "");
}

TEST(Join, PutsTheSeparatorBetweenTheParts) {
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "c"}, ", "), "a, , c");
  EXPECT_EQ(join(kNames, "|").substr(0, kNames[0].size() + 1), std::string(kNames[0]) + "|");
  EXPECT_EQ(join(std::vector<int>{-1, 20}, ","), "-1,20");
  EXPECT_EQ(join(std::vector<std::string>{}, ", "), "");
}

TEST(ParseNumber, TakesWholeTextsOnly) {
  EXPECT_EQ(parse_number<int>("-17"), -17);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), ~std::uint64_t{0});
  EXPECT_EQ(parse_number<double>("-1.5e3"), -1500.0);
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "1.5", "-", "0x1"})
    EXPECT_EQ(parse_number<int>(text), std::nullopt) << text;
  for (const char* text : {"", "1,5", "1e", "."})
    EXPECT_EQ(parse_number<double>(text), std::nullopt) << text;
}

TEST(ParseNumber, TakesNumbersThatTheTypeHolds) {
  EXPECT_EQ(parse_number<int>("2147483647"), 2147483647);
  EXPECT_EQ(parse_number<int>("2147483648"), std::nullopt);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551616"), std::nullopt);
  EXPECT_EQ(parse_number<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(parse_number<double>("1e999"), std::nullopt);
}

TEST(FormatCount, GroupsByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(~0ULL), "18,446,744,073,709,551,615");
}

TEST(FormatNumber, IsPrintfOfOneNumber) {
  EXPECT_EQ(format_number("%.3f", 1.5), "1.500");
  EXPECT_EQ(format_number("%.17g", 0.1), "0.10000000000000001");
  EXPECT_EQ(format_number(", %.0f %% of the whole", 12.4), ", 12 % of the whole");
  EXPECT_EQ(format_number("%.0f", 1e300).size(), 301U) << "cut";
}

TEST(FormatNumber, GivesNotANumberNoSign) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(format_number("%.1f", nan), "nan");
  EXPECT_EQ(format_number("%.1f", -nan), "nan");
  EXPECT_EQ(format_number("%.1f", -std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Counted, AddsAnSForAllButOne) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1U, "rank"), "1 rank");
  EXPECT_EQ(counted(std::int64_t{1024}, "rank"), "1,024 ranks");
}

TEST(ShortestNumber, ReadsBackAsTheValue) {
  EXPECT_EQ(shortest_number(0.1), "0.1");
  EXPECT_EQ(shortest_number(1e-8), "1e-08");
  EXPECT_EQ(shortest_number(-1.0 / 3), "-0.3333333333333333");
}

TEST(FormatTable, AlignsTextLeftAndNumbersRight) {
  EXPECT_EQ(format_table({{"tier", "bytes"}, {"host", "12"}, {"nvme", "3,400"}}),
            "tier  bytes\n"
            "host     12\n"
            "nvme  3,400\n");
}

TEST(FormatTable, AlignsNumbersLeftWhenAsked) {
  EXPECT_EQ(format_table({{"stage", "3", "default"}, {"lr", "0.001", ""}}, Alignment::left),
            "stage  3      default\n"
            "lr     0.001\n");
}

TEST(FormatTable, LeavesNoTrailingSpacesAndTakesShortRows) {
  EXPECT_EQ(format_table({{"name", "note"}, {"a", "long text"}, {"b"}}),
            "name  note\n"
            "a     long text\n"
            "b\n");
}

TEST(FormatTable, CountsCharactersNotBytes) {
  EXPECT_EQ(format_table({{"a", "b"}, {"\u00d7\u00d7", "x"}, {"yyy", "z"}}),
            "a    b\n"
            "\u00d7\u00d7   x\n"
            "yyy  z\n");
}

TEST(DisplayWidth, CountsCodePoints) {
  EXPECT_EQ(display_width(""), 0U);
  EXPECT_EQ(display_width("abc"), 3U);
  EXPECT_EQ(display_width("\u2192 \u00d7"), 3U);
}

TEST(Utf8Length, IsThatOfTheFirstSequence) {
  const std::vector<std::string> characters = {
      std::string(1, '\0'), "\x7f",         "\xC2\x80",     "\xDF\xBF",         "\xE0\xA0\x80",
      "\xED\x9F\xBF",       "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};
  for (const std::string& character : characters) {
    EXPECT_EQ(utf8_length(character), character.size()) << testing::PrintToString(character);
    EXPECT_EQ(utf8_length(character + "\x80"), character.size()) << "whatever follows";
  }
}

TEST(Utf8Length, IsNothingOfBytesThatAreNoCharacter) {
  for (const char* bytes : {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2z", "\xE0\x9F\xBF",
                            "\xE1\x80", "\xE1\x80z", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                            "\xF1\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"})
    EXPECT_EQ(utf8_length(bytes), 0U) << testing::PrintToString(bytes);
}

}  // namespace
}  // namespace sluice
