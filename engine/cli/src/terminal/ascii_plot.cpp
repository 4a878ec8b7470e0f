#include "terminal/ascii_plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "sluice/base/text.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr std::size_t kLabelWidth = 9;  // "12345.678": any loss that is of use

// Columns left for the chart itself beside the labels and the axis.
int chart_columns_of(const PlotOptions& options) {
  return options.columns - static_cast<int>(kLabelWidth) - 2;
}

// The range of an axis. drawn_range() widens an empty range.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double length() const { return high - low; }
};

// The chart's dots, `dots_x_` by `dots_y_` to a character, and the marks that cover characters.
class Canvas {
 public:
  Canvas(int columns, int rows, bool unicode)
      : columns_(columns),
        rows_(rows),
        dots_x_(unicode ? 2 : 1),
        dots_y_(unicode ? 4 : 1),
        unicode_(unicode),
        cells_(static_cast<std::size_t>(columns * rows), 0),
        marks_(cells_.size()) {}

  int width() const { return columns_ * dots_x_; }
  int height() const { return rows_ * dots_y_; }

  // (0, 0) is the lower left dot.
  void dot(int x, int y) {
    const int from_top = height() - 1 - y;
    cells_[cell(x, y)] |= kBraille[static_cast<std::size_t>(from_top % dots_y_)]
                                  [static_cast<std::size_t>(x % dots_x_)];
  }
  void mark(int x, int y, std::string_view text) { marks_[cell(x, y)] = text; }

  std::string row(int from_top) const {
    std::string out;
    for (int column = 0; column < columns_; ++column) {
      const auto at = static_cast<std::size_t>(from_top) * static_cast<std::size_t>(columns_) +
                      static_cast<std::size_t>(column);
      if (!marks_[at].empty()) {
        out += marks_[at];
      } else {
        out += unicode_ ? braille(cells_[at]) : std::string(cells_[at] != 0 ? "." : " ");
      }
    }
    return out;
  }

 private:
  // Bits of the braille block U+2800 by row and column of the dot.
  static constexpr std::array<std::array<std::uint8_t, 2>, 4> kBraille = {
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};

  std::size_t cell(int x, int y) const {
    const auto row = static_cast<std::size_t>((height() - 1 - y) / dots_y_);
    return row * static_cast<std::size_t>(columns_) + static_cast<std::size_t>(x / dots_x_);
  }
  static std::string braille(std::uint8_t bits) {
    if (bits == 0) return " ";
    // U+2800 + bits in UTF-8.
    return {static_cast<char>(0xE2), static_cast<char>(0xA0 | (bits >> 6U)),
            static_cast<char>(0x80 | (bits & 0x3FU))};
  }

  int columns_;
  int rows_;
  int dots_x_;
  int dots_y_;
  bool unicode_;
  std::vector<std::uint8_t> cells_;
  std::vector<std::string_view> marks_;
};

bool drawable(const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y);
}

int to_dot(double value, const Range& range, int dots) {
  const double share = (value - range.low) / range.length();
  return std::clamp(static_cast<int>(std::lround(share * (dots - 1))), 0, dots - 1);
}

// The mean of each column's points; points that share a column cannot be told apart.
std::map<int, double> column_means(const PlotSeries& series, const Range& x_range, int width) {
  std::map<int, std::pair<double, int>> sums;
  for (const PlotPoint& point : series.points) {
    if (!drawable(point)) continue;
    auto& [sum, count] = sums[to_dot(point.x, x_range, width)];
    sum += point.y;
    ++count;
  }
  std::map<int, double> means;
  for (const auto& [column, sum] : sums) means[column] = sum.first / sum.second;
  return means;
}

void draw_line(Canvas& canvas, const std::map<int, double>& means, const Range& y_range) {
  std::optional<std::pair<int, int>> previous;
  for (const auto& [x, mean] : means) {
    const int y = to_dot(mean, y_range, canvas.height());
    if (!previous) {
      canvas.dot(x, y);
    } else {
      // One dot per step along the longer side leaves no gap in the line.
      const int steps = std::max(x - previous->first, std::abs(y - previous->second));
      for (int i = 1; i <= steps; ++i) {
        canvas.dot(previous->first + (x - previous->first) * i / steps,
                   previous->second + (y - previous->second) * i / steps);
      }
    }
    previous = {x, y};
  }
}

// Only drawn values count, so a single outlier does not flatten the chart. A constant series gets
// some room around it.
Range drawn_range(const std::vector<PlotSeries>& series, const Range& x_range, int width) {
  Range range;
  for (const PlotSeries& one : series) {
    if (one.style == PlotSeries::Style::line) {
      for (const auto& [column, mean] : column_means(one, x_range, width)) range.include(mean);
    } else {
      for (const PlotPoint& point : one.points) {
        if (drawable(point)) range.include(point.y);
      }
    }
  }
  if (range.length() <= 0) {
    const double room = std::max(std::abs(range.low) * 0.05, 1e-3);
    range = {range.low - room, range.high + room};
  }
  return range;
}

// Enough digits that neighbouring labels differ.
std::string y_label(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step))) + 1, 0, 6);
  return format_number(("%." + std::to_string(digits) + "f").c_str(), value);
}

std::string x_axis(const Range& range, int columns, const std::string& name) {
  const auto text = [](double value) { return format_number("%.0f", value); };
  const std::string left = text(range.low);
  const std::string middle = text((range.low + range.high) / 2);
  const std::string right = name.empty() ? text(range.high) : name + " " + text(range.high);
  const auto width = static_cast<std::size_t>(columns);
  std::string line(width, ' ');
  line.replace(0, left.size(), left);
  if (const std::size_t at = width / 2 - middle.size() / 2;
      at > left.size() && at + middle.size() + 1 < width - right.size()) {
    line.replace(at, middle.size(), middle);
  }
  line.replace(width - right.size(), right.size(), right);
  return line;
}

std::vector<std::string> y_labels(const Range& range, int rows) {
  constexpr int kEvery = 3;  // rows from one label to the next
  std::vector<std::string> labels(static_cast<std::size_t>(rows));
  const double per_row = range.length() / (rows - 1);
  for (int row = 0; row < rows; ++row) {
    const int from_bottom = rows - 1 - row;
    if (row != 0 && (from_bottom % kEvery != 0 || row < 2)) continue;
    labels[static_cast<std::size_t>(row)] =
        y_label(range.low + per_row * from_bottom, per_row * kEvery);
  }
  return labels;
}

std::string legend(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  std::string text;
  for (const PlotSeries& one : series) {
    if (std::none_of(one.points.begin(), one.points.end(), drawable)) continue;
    const bool line = one.style == PlotSeries::Style::line;
    const std::string sign = options.unicode ? (line ? "⠒⠒" : "●") : (line ? ".." : "o");
    text += (text.empty() ? "" : "   ") + sign + " " + one.name;
  }
  return text;
}

// The drawn chart with its axes and the legend around it.
std::string assemble(const Canvas& canvas, const Range& x_range, const Range& y_range,
                     const std::vector<PlotSeries>& series, const PlotOptions& options) {
  const int chart_columns = chart_columns_of(options);
  const std::vector<std::string> labels = y_labels(y_range, options.rows);
  std::string out;
  for (int row = 0; row < options.rows; ++row) {
    const std::string& label = labels[static_cast<std::size_t>(row)];
    std::string line(kLabelWidth - label.size(), ' ');
    line += label;
    line += options.unicode ? (label.empty() ? " │" : " ┤") : (label.empty() ? " |" : " +");
    line += canvas.row(row);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  const std::string margin(kLabelWidth + 1, ' ');
  out += margin + (options.unicode ? "└" : "+");
  for (int i = 0; i < chart_columns; ++i) out += options.unicode ? "─" : "-";
  out += "\n" + margin + " " + x_axis(x_range, chart_columns, options.x_label) + "\n";
  return out + margin + " " + legend(series, options) + "\n";
}

}  // namespace

std::string plot(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  Range x_range;
  int count = 0;
  for (const PlotSeries& one : series) {
    for (const PlotPoint& point : one.points) {
      if (!drawable(point)) continue;
      x_range.include(point.x);
      ++count;
    }
  }
  if (count < 2 || x_range.length() <= 0) return "";

  Canvas canvas(chart_columns_of(options), options.rows, options.unicode);
  const Range y_range = drawn_range(series, x_range, canvas.width());
  for (const PlotSeries& one : series) {
    if (one.style == PlotSeries::Style::line) {
      draw_line(canvas, column_means(one, x_range, canvas.width()), y_range);
      continue;
    }
    for (const PlotPoint& point : one.points) {
      if (!drawable(point)) continue;
      canvas.mark(to_dot(point.x, x_range, canvas.width()),
                  to_dot(point.y, y_range, canvas.height()), options.unicode ? "●" : "o");
    }
  }
  return assemble(canvas, x_range, y_range, series, options);
}

}  // namespace sluice::cli
