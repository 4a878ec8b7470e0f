#pragma once
// A chart of losses over steps for the terminal: the first series as a line (braille dots, 2 x 4 to
// a character), the others as marks. Without unicode, one character a cell. Thread-safe: values and
// free functions without state.

#include <string>
#include <vector>

namespace sluice::cli {

struct PlotPoint {
  double x = 0;
  double y = 0;  // points that are not finite are left out
};

struct PlotSeries {
  enum class Style {
    line,   // points that share a column are averaged; columns are connected
    marks,  // every point is a mark of its own, drawn over the lines
  };
  std::string name;
  Style style = Style::line;
  std::vector<PlotPoint> points;
};

struct PlotOptions {
  int columns = 80;  // of everything, labels included; at least 40
  int rows = 13;     // of the chart itself; at least 4. Labels are evenly spaced with 3 n + 1
  bool unicode = true;
  std::string x_label;
};

// Lines with a newline each: the chart, its axes with labels, and a legend. Empty when fewer than
// two points can be drawn.
std::string plot(const std::vector<PlotSeries>& series, const PlotOptions& options);

}  // namespace sluice::cli
