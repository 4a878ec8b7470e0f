#include "page/svg_chart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

ChartLine line(const std::vector<double>& values) {
  ChartLine line{"a < b", 3, {}, false};
  double x = 0;
  for (const double value : values) line.points.push_back({++x, value, value, value});
  return line;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Tick, IsOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(tick_of(10, 5), 2);
  EXPECT_DOUBLE_EQ(tick_of(9.5, 5), 2);
  EXPECT_DOUBLE_EQ(tick_of(0.05, 5), 0.01);
  EXPECT_DOUBLE_EQ(tick_of(100, 8), 20);
  EXPECT_DOUBLE_EQ(tick_of(300, 8), 50);
}

TEST(LineChart, BreaksItsLineAtGapsAndShowsSinglePoints) {
  const std::string svg = line_chart({}, {line({1, 2, kGap, 3, kGap, 4, 5})});
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "<circle"), 1);
  EXPECT_EQ(count(svg, "<polygon"), 0) << "there is no range";
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(LineChart, HasABandWhereAPointStandsForARange) {
  ChartLine wide = line({1, 2});
  wide.points[1].high = 9;
  const std::string svg = line_chart({}, {wide});
  EXPECT_EQ(count(svg, "<polygon class=\"band c3\""), 1);
  EXPECT_THAT(svg, HasSubstr(">10</text>")) << "the axis reaches the end of the range";
}

TEST(LineChart, OfNothingOfOnePointAndOfEqualValuesHasAxes) {
  for (const auto& values : std::vector<std::vector<double>>{{}, {kGap}, {7}, {7, 7, 7}, {0, 0}}) {
    for (const auto from : {ChartAxes::From::zero, ChartAxes::From::least}) {
      ChartAxes axes;
      axes.y_from = from;
      const std::string svg = line_chart(axes, {line(values)});
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
      EXPECT_GE(count(svg, "class=\"grid\""), 2);
    }
  }
}

TEST(LineChart, EscapesWhatItIsGiven) {
  ChartAxes axes;
  axes.title = "\"><script>";
  axes.marks.push_back({1, "<b>"});
  const std::string svg = line_chart(axes, {line({1, 2})}) + chart_legend("<i>", {line({})});
  for (const char* raw : {"<script", "<b>", "<i>", "a < b"}) EXPECT_THAT(svg, Not(HasSubstr(raw)));
}

// The height of a polygon's first point, which lies on the area's upper edge.
double first_y(const std::string& svg, int polygon) {
  std::size_t at = 0;
  for (int i = 0; i <= polygon; ++i) at = svg.find("<polygon", at + 1);
  const std::size_t comma = svg.find(',', svg.find("points=\"", at));
  return std::stod(svg.substr(comma + 1));
}

TEST(StackedChart, PutsEachAreaOnTheOnesBefore) {
  const std::string svg = stacked_chart({}, {line({1, 1}), line({2, 2}), line({kGap, 1})});
  const double one = first_y(svg, 0);
  const double three = first_y(svg, 1);
  EXPECT_NEAR(first_y(svg, 2), three, 0.11) << "a gap counts as 0";
  const double zero = 200;  // 240 high, 40 of it below the axis
  EXPECT_NEAR(zero - three, 3 * (zero - one), 0.3);
}

}  // namespace
}  // namespace sluice::cli
