#pragma once
// Charts as SVG, for the pages that commands write (html_page.hpp has their style): lines over a
// horizontal axis, with the range of what a point stands for, or stacked areas. Thread-safe: values
// and free functions without state.

#include <string>
#include <vector>

namespace sluice::cli {

// A point stands for one value, or for the mean of several between `low` and `high`. A `y` that is
// not a number is a gap.
struct ChartPoint {
  double x = 0;
  double y = 0;
  double low = y;
  double high = y;
};

struct ChartLine {
  std::string name;
  int colour = 0;  // of the page's style, 0 to 9
  std::vector<ChartPoint> points;
  bool dashed = false;
};

struct ChartAxes {
  std::string title;    // for who cannot see it
  std::string x_label;  // below the axis
  double height = 240;
  enum class From { zero, least } y_from = From::zero;
  // Where something happened, marked on the horizontal axis; what, as the mouse shows it.
  struct Mark {
    double x = 0;
    std::string what;
  };
  std::vector<Mark> marks;
};

// One polyline for each line, over a band of its ranges.
std::string line_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines);
// The lines on top of each other, as areas; they have the same `x`. A gap counts as 0.
std::string stacked_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines);
// A paragraph with `text` and a coloured square before each line's name.
std::string chart_legend(const std::string& text, const std::vector<ChartLine>& lines);

// 1, 2 or 5 times a power of ten, so that about `count` of them make `range`.
double tick_of(double range, int count);

}  // namespace sluice::cli
