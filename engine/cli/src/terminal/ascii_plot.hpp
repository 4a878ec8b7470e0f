#pragma once
// A chart of losses over steps for the terminal. Lines are drawn with braille dots, 2 x 4 to a
// character. Without unicode a character is one cell. Thread-safe: values and free functions
// without state.

#include <string>
#include <vector>

namespace sluice::cli {

struct PlotPoint {
  double x = 0;
  double y = 0;  // non-finite points are left out
};

struct PlotSeries {
  enum class Style {
    line,   // points that share a column are averaged; columns are connected
    marks,  // every point is a separate mark, drawn over the lines
  };
  std::string name;
  Style style = Style::line;
  std::vector<PlotPoint> points;
};

struct PlotOptions {
  int columns = 80;  // total width, labels included; at least 40
  int rows = 13;     // height of the chart itself; at least 4. 3 n + 1 rows space labels evenly
  bool unicode = true;
  std::string x_label;
};

// The chart, its axes with labels, and a legend, as lines that each end with a newline. Empty when
// fewer than two points can be drawn.
std::string plot(const std::vector<PlotSeries>& series, const PlotOptions& options);

}  // namespace sluice::cli
