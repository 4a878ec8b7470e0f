#include "page/svg_chart.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "page/html_page.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kWidth = 820;
constexpr double kLeft = 64;
constexpr double kRight = 12;
constexpr double kBottom = 40;
constexpr double kTop = 10;

// The range of an axis and the distance between its ticks.
struct Scale {
  double from = 0;
  double to = 1;
  double tick = 1;
};

Scale whole_ticks(double from, double to) {
  constexpr int kTicks = 5;
  if (!(from < to)) {
    // A range of one value is widened.
    const double around = std::max(std::abs(from) * 0.1, 1e-9);
    from -= from > 0 || from < 0 ? around : 0;
    to += around;
  }
  const double tick = tick_of(to - from, kTicks);
  return {tick * std::floor(from / tick + 1e-9), tick * std::ceil(to / tick - 1e-9), tick};
}

class Drawing {
 public:
  Drawing(const ChartAxes& axes, const std::vector<ChartLine>& lines) : axes_(axes) {
    double least_x = std::numeric_limits<double>::infinity();
    double least_y = least_x;
    double most_x = -least_x;
    double most_y = -least_x;
    for (const ChartLine& line : lines) {
      for (const ChartPoint& point : line.points) {
        least_x = std::min(least_x, point.x);
        most_x = std::max(most_x, point.x);
        if (!std::isfinite(point.y)) continue;
        least_y = std::min(least_y, std::isfinite(point.low) ? point.low : point.y);
        most_y = std::max(most_y, std::isfinite(point.high) ? point.high : point.y);
      }
    }
    if (least_x > most_x) least_x = most_x = 0;
    if (least_y > most_y) least_y = most_y = 0;
    x_ = {least_x, most_x, tick_of(std::max(most_x - least_x, 1.0), 8)};
    if (least_x == most_x) x_ = {least_x - 0.5, least_x + 0.5, 1};
    y_ = axes.y_from == ChartAxes::From::zero ? whole_ticks(0, std::max(most_y, 0.0))
                                              : whole_ticks(least_y, most_y);
  }

  double x(double value) const {
    return kLeft + (kWidth - kLeft - kRight) * (value - x_.from) / (x_.to - x_.from);
  }
  double y(double value) const {
    return axes_.height - kBottom -
           (axes_.height - kBottom - kTop) * (value - y_.from) / (y_.to - y_.from);
  }
  std::string at(double px, double py) const { return svg_number(x(px)) + "," + svg_number(y(py)); }

  std::string begin() const {
    std::string out = "<div class=\"wide\"><svg viewBox=\"0 0 " + svg_number(kWidth) + " " +
                      svg_number(axes_.height) + "\" role=\"img\" aria-label=\"" +
                      escape_html(axes_.title) + "\">\n";
    const auto ticks = static_cast<int>(std::lround((y_.to - y_.from) / y_.tick));
    for (int i = 0; i <= ticks; ++i) {
      const double value = y_.from + i * y_.tick;
      const std::string height = svg_number(y(value));
      out += "<line class=\"grid\" x1=\"" + svg_number(kLeft) + "\" x2=\"" +
             svg_number(kWidth - kRight) + "\" y1=\"" + height + "\" y2=\"" + height +
             "\"/><text x=\"" + svg_number(kLeft - 8) + "\" y=\"" + svg_number(y(value) + 4) +
             "\" text-anchor=\"end\">" + label(value, y_.tick) + "</text>\n";
    }
    for (double value = x_.tick * std::ceil(x_.from / x_.tick - 1e-9);
         value <= x_.to + 1e-9 * x_.tick; value += x_.tick) {
      out += "<text x=\"" + svg_number(x(value)) + "\" y=\"" +
             svg_number(axes_.height - kBottom + 18) + "\" text-anchor=\"middle\">" +
             label(value, x_.tick) + "</text>\n";
    }
    return out + "<text x=\"" + svg_number((kLeft + kWidth) / 2) + "\" y=\"" +
           svg_number(axes_.height - 4) + "\" text-anchor=\"middle\">" +
           escape_html(axes_.x_label) + "</text>\n";
  }

  std::string end() const {
    std::string out;
    const double floor = axes_.height - kBottom;
    for (const ChartAxes::Mark& mark : axes_.marks) {
      out += "<path class=\"mark c4\" d=\"M" + svg_number(x(mark.x)) + " " + svg_number(floor) +
             "l-4 7h8z\"><title>" + escape_html(mark.what) + "</title></path>\n";
    }
    return out + "</svg></div>\n";
  }

 private:
  // A value that only rounding separates from 0 is shown as 0.
  static std::string label(double value, double tick) {
    return format_number("%g", std::abs(value) < 1e-6 * tick ? 0 : value);
  }

  const ChartAxes& axes_;
  Scale x_;
  Scale y_;
};

std::string shape(const char* element, const std::string& classes, int colour,
                  const std::string& points, const char* more = "") {
  return std::string("<") + element + " class=\"" + classes + " c" + std::to_string(colour) + "\"" +
         more + " points=\"" + points + "\"/>\n";
}

// Index ranges of a line between its gaps.
std::vector<std::pair<std::size_t, std::size_t>> runs_of(const std::vector<ChartPoint>& points) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= points.size(); ++i) {
    if (i < points.size() && std::isfinite(points[i].y)) continue;
    if (i > begin) runs.emplace_back(begin, i);
    begin = i + 1;
  }
  return runs;
}

std::string drawn_line(const Drawing& drawing, const ChartLine& line) {
  std::string out;
  for (const auto& [begin, end] : runs_of(line.points)) {
    std::string middle;
    std::string above;
    std::string below;
    bool wide = false;
    for (std::size_t i = begin; i < end; ++i) {
      const ChartPoint& point = line.points[i];
      middle += drawing.at(point.x, point.y) + " ";
      above += drawing.at(point.x, point.high) + " ";
      below.insert(0, drawing.at(point.x, point.low) + " ");
      wide = wide || point.low < point.high;
    }
    if (wide) out += shape("polygon", "band", line.colour, above + below);
    if (end - begin > 1) {
      out += shape("polyline", "line", line.colour, middle,
                   line.dashed ? " stroke-dasharray=\"4 4\"" : "");
    } else {
      out += "<circle class=\"dot c" + std::to_string(line.colour) + "\" cx=\"" +
             svg_number(drawing.x(line.points[begin].x)) + "\" cy=\"" +
             svg_number(drawing.y(line.points[begin].y)) + "\" r=\"3\"/>\n";
    }
  }
  return out;
}

}  // namespace

double tick_of(double range, int count) {
  const double rough = std::max(range, 1e-12) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string line_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines) {
  const Drawing drawing(axes, lines);
  std::string out = drawing.begin();
  for (const ChartLine& line : lines) out += drawn_line(drawing, line);
  return out + drawing.end();
}

std::string stacked_chart(const ChartAxes& axes, const std::vector<ChartLine>& lines) {
  std::vector<ChartLine> tops;
  for (const ChartLine& line : lines) {
    ChartLine top{line.name, line.colour, {}, false};
    for (std::size_t i = 0; i < line.points.size(); ++i) {
      const double own = std::isfinite(line.points[i].y) ? line.points[i].y : 0;
      const double sum = own + (tops.empty() ? 0 : tops.back().points[i].y);
      top.points.push_back({line.points[i].x, sum, sum, sum});
    }
    tops.push_back(std::move(top));
  }
  const Drawing drawing(axes, tops);
  std::string out = drawing.begin();
  for (std::size_t l = 0; l < tops.size(); ++l) {
    std::string top;
    std::string floor;
    const std::vector<ChartPoint>& points = tops[l].points;
    // A single step gets some width, else its area would be invisible.
    const double margin = points.size() == 1 ? 0.4 : 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double low = l == 0 ? 0 : tops[l - 1].points[i].y;
      for (const double x : {points[i].x - margin, points[i].x + margin}) {
        top += drawing.at(x, points[i].y) + " ";
        floor.insert(0, drawing.at(x, low) + " ");
        if (margin == 0) break;
      }
    }
    out += shape("polygon", "area", tops[l].colour, top + floor);
  }
  return out + drawing.end();
}

std::string chart_legend(const std::string& text, const std::vector<ChartLine>& lines) {
  std::string out = "<p class=\"legend\">" + escape_html(text);
  for (const ChartLine& line : lines) {
    out += " <span><b class=\"c" + std::to_string(line.colour) + "\">" +
           (line.dashed ? "&#9644;" : "&#9632;") + "</b>&nbsp;" + escape_html(line.name) +
           "</span>";
  }
  return out + "</p>\n";
}

}  // namespace sluice::cli
