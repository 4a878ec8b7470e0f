#include "sluice/base/text.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

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

TEST(FormatCount, GroupsByThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(~0ULL), "18,446,744,073,709,551,615");
}

TEST(FormatTable, AlignsTextLeftAndNumbersRight) {
  EXPECT_EQ(format_table({{"tier", "bytes"}, {"host", "12"}, {"nvme", "3,400"}}),
            "tier  bytes\n"
            "host     12\n"
            "nvme  3,400\n");
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

}  // namespace
}  // namespace sluice
