#include "report/run_timeline.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "page/html_page.hpp"
#include "page/svg_chart.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kWidth = 820;
constexpr double kLeft = 84;
constexpr double kRight = 12;
constexpr double kTop = 6;
constexpr double kBottom = 40;
constexpr double kRowHeight = 20;
constexpr double kFurtherLaneHeight = 9;  // the second lane of a row and later ones
constexpr double kLeastWidth = 0.4;       // narrower spans are merged with their neighbours

struct Kind {
  const char* name;
  int colour;
};

// The kind of a span, which chooses its colour: in the rows "compute" and "gpu" by the first word
// of its name, else by its row.
Kind kind_of(const std::string& row, const std::string& name) {
  static constexpr Kind kComputing[] = {
      {"forward", 2}, {"recompute+backward", 5}, {"backward", 5}, {"loss", 10}, {"evaluate", 13}};
  static constexpr Kind kRows[] = {{"step", 7},        {"stalls", 4},     {"gather", 11},
                                   {"h2d", 8},         {"d2h", 9},        {"update", 3},
                                   {"read", 0},        {"write", 1},      {"commit", 6},
                                   {"checkpoint", 12}, {"evaluation", 13}};
  if (row == "compute" || row == "gpu") {
    for (const Kind& kind : kComputing) {
      if (name.substr(0, name.find(' ')) == kind.name) return kind;
    }
  }
  for (const Kind& kind : kRows) {
    if (row == kind.name) return kind;
  }
  return {"other", 7};
}

std::string milliseconds(double microseconds) {
  return format_number("%.3f ms", 1e-3 * microseconds);
}

class Timeline {
 public:
  explicit Timeline(const TracedStep& step) : step_(step) {
    double y = kTop;
    std::string row;
    for (const TracedLane& lane : step.lanes) {
      const bool further = lane.row == row;
      tops_.push_back(y);
      heights_.push_back(further ? kFurtherLaneHeight : kRowHeight);
      y += heights_.back() + (further ? 1 : 2);
      row = lane.row;
    }
    height_ = y + kBottom;
  }

  std::string svg() {
    std::string body;
    std::string row;
    for (std::size_t i = 0; i < step_.lanes.size(); ++i) {
      const TracedLane& lane = step_.lanes[i];
      if (lane.row != row) body += row_label(lane.row, tops_[i]);
      row = lane.row;
      body += spans_of(lane, tops_[i], heights_[i]);
    }
    return legend() + "<div class=\"wide\"><svg viewBox=\"0 0 " + svg_number(kWidth) + " " +
           svg_number(height_) + "\" role=\"img\" aria-label=\"timeline of step " +
           std::to_string(step_.step) + "\">\n" + axis() + body + "</svg></div>\n";
  }

 private:
  double x(double us) const {
    const double share = std::clamp(us / std::max(step_.duration_us, 1e-3), 0.0, 1.0);
    return kLeft + (kWidth - kLeft - kRight) * share;
  }

  static std::string row_label(const std::string& row, double top) {
    return "<text x=\"" + svg_number(kLeft - 8) + "\" y=\"" + svg_number(top + 14) +
           "\" text-anchor=\"end\">" + escape_html(row) + "</text>\n";
  }

  std::string axis() const {
    std::string out;
    const double last_ms = 1e-3 * step_.duration_us;
    const double tick = tick_of(last_ms, 8);
    const double floor = height_ - kBottom;
    for (double ms = 0; ms <= last_ms * 1.0001; ms += tick) {
      const std::string at = svg_number(x(1e3 * ms));
      out += "<line class=\"grid\" x1=\"" + at + "\" x2=\"" + at + "\" y1=\"" + svg_number(kTop) +
             "\" y2=\"" + svg_number(floor) + "\"/><text x=\"" + at + "\" y=\"" +
             svg_number(floor + 18) + "\" text-anchor=\"middle\">" + format_number("%g", ms) +
             "</text>\n";
    }
    return out + "<text x=\"" + svg_number((kLeft + kWidth) / 2) + "\" y=\"" +
           svg_number(height_ - 4) + "\" text-anchor=\"middle\">milliseconds</text>\n";
  }

  // Spans too narrow to be told apart are drawn as one rectangle. So the picture of a step has a
  // bounded size for any number of spans.
  std::string spans_of(const TracedLane& lane, double top, double height) {
    std::vector<TracedSpan> spans = lane.spans;
    std::sort(spans.begin(), spans.end(),
              [](const TracedSpan& a, const TracedSpan& b) { return a.begin_us < b.begin_us; });
    std::string out;
    for (std::size_t i = 0; i < spans.size();) {
      const Kind kind = kind_of(lane.row, spans[i].name);
      std::size_t next = i + 1;
      double end_us = spans[i].end_us;
      while (next < spans.size() && x(spans[next].end_us) - x(spans[i].begin_us) < kLeastWidth) {
        end_us = std::max(end_us, spans[next].end_us);
        ++next;
      }
      note(kind);
      out += rectangle(spans[i], next - i, end_us, kind, top, height);
      i = next;
    }
    return out;
  }

  std::string rectangle(const TracedSpan& span, std::size_t count, double end_us, const Kind& kind,
                        double top, double height) const {
    std::string text = count == 1 ? span.name : std::to_string(count) + " spans, " + span.name;
    text += ": " + milliseconds(end_us - span.begin_us) + " from " + milliseconds(span.begin_us);
    if (count == 1 && !span.args.empty()) text += "; " + span.args;
    const double left = x(span.begin_us);
    const double width = std::max(x(end_us) - left, kLeastWidth);
    return "<rect class=\"span c" + std::to_string(kind.colour) + "\" x=\"" +
           format_number("%.2f", left) + "\" y=\"" + svg_number(top) + "\" width=\"" +
           format_number("%.2f", width) + "\" height=\"" + svg_number(height) + "\"><title>" +
           escape_html(text) + "</title></rect>\n";
  }

  void note(const Kind& kind) {
    const auto same = [&](const ChartLine& line) { return line.name == kind.name; };
    if (std::none_of(kinds_.begin(), kinds_.end(), same))
      kinds_.push_back({kind.name, kind.colour, {}, false});
  }
  std::string legend() const { return chart_legend("", kinds_); }

  const TracedStep& step_;
  std::vector<double> tops_;  // one for each lane
  std::vector<double> heights_;
  double height_ = 0;
  std::vector<ChartLine> kinds_;  // the kinds that are drawn, for the legend
};

}  // namespace

std::string step_timeline(const TracedStep& step) {
  return Timeline(step).svg();
}

}  // namespace sluice::cli
