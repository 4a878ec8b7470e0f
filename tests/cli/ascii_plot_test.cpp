#include "terminal/ascii_plot.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "sluice/base/text.hpp"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

PlotOptions ascii(int columns, int rows) {
  return {columns, rows, false, "step"};
}

PlotSeries falling(int count) {
  PlotSeries series{"loss", PlotSeries::Style::line, {}};
  for (int i = 1; i <= count; ++i)
    series.points.push_back({static_cast<double>(i), 10.0 - 9.0 * (i - 1) / (count - 1)});
  return series;
}

TEST(Plot, DrawsALineFromTheUpperLeftToTheLowerRight) {
  const std::vector<std::string> lines = lines_of(plot({falling(4)}, ascii(40, 4)));
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0], "     10.0 +.........");
  EXPECT_EQ(lines[1].substr(0, 11), "          |");
  EXPECT_EQ(lines[3].substr(0, 11), "      1.0 +");
  EXPECT_EQ(lines[3].back(), '.');
  EXPECT_EQ(lines[3].size(), 40U);
  EXPECT_EQ(lines[4], "          +" + std::string(29, '-'));
  EXPECT_THAT(lines[5], HasSubstr("step 4"));
  EXPECT_EQ(lines[6], "           .. loss");
}

TEST(Plot, IsNeverWiderThanAsked) {
  for (const bool unicode : {false, true}) {
    for (const int columns : {40, 60, 100}) {
      PlotOptions options = ascii(columns, 13);
      options.unicode = unicode;
      for (const std::string& line : lines_of(plot({falling(500)}, options))) {
        EXPECT_LE(display_width(line), static_cast<std::size_t>(columns)) << line;
      }
    }
  }
}

TEST(Plot, ShowsMarksOverTheLine) {
  const PlotSeries marks{"eval", PlotSeries::Style::marks, {{1, 10.0}, {20, 1.0}}};
  const std::string text = plot({falling(20), marks}, ascii(60, 10));
  EXPECT_EQ(std::count(text.begin(), text.end(), 'o') - 1, 2 + 1)
      << text;  // two marks, the legend's, "loss"
  EXPECT_THAT(text, HasSubstr(".. loss   o eval"));
}

TEST(Plot, LeavesASeriesWithoutPointsOutOfTheLegend) {
  const std::string text =
      plot({falling(20), {"eval", PlotSeries::Style::marks, {}}}, ascii(60, 10));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("eval")));
}

TEST(Plot, LeavesOutWhatIsNotFinite) {
  PlotSeries series = falling(20);
  series.points[3].y = std::numeric_limits<double>::quiet_NaN();
  series.points[4].y = std::numeric_limits<double>::infinity();
  EXPECT_EQ(lines_of(plot({series}, ascii(60, 10))).front().substr(0, 11), "     10.0 +");
}

TEST(Plot, GivesAConstantSeriesRoom) {
  const PlotSeries flat{"loss", PlotSeries::Style::line, {{1, 2.0}, {2, 2.0}, {3, 2.0}}};
  const std::vector<std::string> lines = lines_of(plot({flat}, ascii(40, 4)));
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_THAT(lines[0], HasSubstr("2.1"));
  EXPECT_THAT(lines[3], HasSubstr("1.9"));
}

TEST(Plot, IsEmptyBelowTwoPoints) {
  EXPECT_EQ(plot({}, ascii(40, 4)), "");
  EXPECT_EQ(plot({{"loss", PlotSeries::Style::line, {{1, 2.0}}}}, ascii(40, 4)), "");
}

TEST(Plot, DrawsBrailleDots) {
  PlotOptions options = ascii(40, 4);
  options.unicode = true;
  const std::string text = plot({falling(100)}, options);
  EXPECT_THAT(text, HasSubstr("┤⠉⠒"));  // the first dots, upper left
  EXPECT_THAT(text, HasSubstr("└──"));
}

}  // namespace
}  // namespace sluice::cli
