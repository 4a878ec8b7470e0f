#pragma once
// SVG charts for the pages that commands write (html_page.hpp has the style): lines over a
// horizontal axis, with a band for the range of each point, or stacked areas. Thread-safe: values
// and free functions without state.

#include <string>
#include <vector>

namespace sluice::cli {

// A point is one value, or the mean of several values between `low` and `high`. A NaN in `y` is a
// gap.
struct ChartPoint {
  double x = 0;
  double y = 0;
  double low = y;
  double high = y;
};

struct ChartLine {
  std::string name;
  int colour = 0;  // class of the page's style, 0 to 9
  std::vector<ChartPoint> points;
  bool dashed = false;
};

struct ChartAxes {
  std::string title;    // for screen readers
  std::string x_label;  // below the axis
  double height = 240;
  enum class From { zero, least } y_from = From::zero;
  // A mark on the horizontal axis; the mouse shows the text `what`.
  struct Mark {
    double x = 0;
    std::string what;
  };
  std::vector<Mark> marks;
};

// Draws each line as a polyline, over a band of the ranges of its points.
std::string line_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines);
// Draws the lines as areas on top of each other. All lines have the same `x` values. A gap counts
// as 0.
std::string stacked_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines);
// A paragraph with `text`, then each line's name after a square in its colour.
std::string chart_legend(const std::string& text, const std::vector<ChartLine>& lines);

// The distance between ticks: 1, 2 or 5 times a power of ten, so that about `count` ticks make
// `range`.
double tick_of(double range, int count);

}  // namespace sluice::cli
