#include "nvme/tune/tune_page.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "nvme/tune/tune_text.hpp"
#include "nvme/tune/tuned_config.hpp"
#include "page/html_page.hpp"
#include "sluice/base/bytes.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kCellWidth = 84;
constexpr double kCellHeight = 34;
constexpr double kLeft = 80;
constexpr double kTop = 8;
constexpr double kBottom = 44;

// A colour between nearly white and a deep blue; cell() writes white text on the dark half.
std::string colour_of(double share) {
  const auto mix = [&](double light, double dark) {
    return std::to_string(static_cast<int>(std::lround(light + (dark - light) * share)));
  };
  return "rgb(" + mix(239, 30) + "," + mix(246, 64) + "," + mix(255, 175) + ")";
}

std::string cell(double x, double y, double rate, double most, bool chosen) {
  const double share = rate / most;
  std::string out = "<rect x=\"" + svg_number(x) + "\" y=\"" + svg_number(y) + "\" width=\"" +
                    svg_number(kCellWidth - 2) + "\" height=\"" + svg_number(kCellHeight - 2) +
                    "\" fill=\"" + colour_of(share) + "\"";
  if (chosen) out += " stroke=\"#d97706\" stroke-width=\"3\"";
  out += "/><text x=\"" + svg_number(x + kCellWidth / 2) + "\" y=\"" +
         svg_number(y + kCellHeight / 2 + 3) +
         "\" text-anchor=\"middle\" style=\"fill:" + (share > 0.5 ? "#fff" : "#1f2937") +
         (chosen ? ";font-weight:700" : "") + "\">" + format_gigabytes(rate) + "</text>\n";
  return out;
}

std::string picture(const SurfaceTable& table, const SurfacePattern& pattern,
                    const nvme::TuneSetting& chosen) {
  double most = 1;
  for (const auto& row : table.points) {
    for (const nvme::TunePoint* point : row)
      if (point != nullptr && point->rounds > 0) most = std::max(most, point->rates.*pattern.rate);
  }
  const double height = kTop + kCellHeight * static_cast<double>(table.blocks.size()) + kBottom;
  const double width = kLeft + kCellWidth * static_cast<double>(table.depths.size()) + 8;
  std::string out = "<h2>" + std::string(pattern.name) +
                    ", GB/s</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 " + svg_number(width) +
                    " " + svg_number(height) + "\" role=\"img\" aria-label=\"" + pattern.name +
                    " by block and depth\">\n";
  for (std::size_t b = 0; b < table.blocks.size(); ++b) {
    const double y = kTop + kCellHeight * static_cast<double>(b);
    out += "<text x=\"" + svg_number(kLeft - 8) + "\" y=\"" + svg_number(y + kCellHeight / 2 + 3) +
           "\" text-anchor=\"end\">" + escape_html(format_bytes(table.blocks[b])) + "</text>\n";
    for (std::size_t d = 0; d < table.depths.size(); ++d) {
      const nvme::TunePoint* point = table.points[b][d];
      if (point == nullptr || point->rounds == 0) continue;
      out += cell(kLeft + kCellWidth * static_cast<double>(d), y, point->rates.*pattern.rate, most,
                  point->setting == chosen);
    }
  }
  const double below = height - kBottom;
  for (std::size_t d = 0; d < table.depths.size(); ++d) {
    out += "<text x=\"" + svg_number(kLeft + kCellWidth * (static_cast<double>(d) + 0.5)) +
           "\" y=\"" + svg_number(below + 16) + "\" text-anchor=\"middle\">" +
           std::to_string(table.depths[d]) + "</text>\n";
  }
  return out + "<text x=\"" + svg_number((kLeft + width) / 2) + "\" y=\"" + svg_number(below + 36) +
         "\" text-anchor=\"middle\">requests in flight</text></svg></div>\n";
}

}  // namespace

std::string tune_page(const NvmeTuneArguments& arguments, const TuneOutcome& outcome,
                      const std::string& command_line) {
  const nvme::TuneSetting& chosen = outcome.choice.point.setting;
  std::string out = html_begin("sluice nvme tune");
  out += "<h1>" + escape_html(join(arguments.paths, ", ")) + ": " +
         escape_html(setting_text(chosen)) + ", " + escape_html(outcome.backend) +
         "</h1>\n<p><code>" + escape_html(command_line) + "</code></p>\n<pre>" +
         escape_html(tuned_config(arguments, outcome)) + "</pre>\n";
  out += "<p>" + rates_text(outcome.choice.point.rates);
  const std::string gain = gain_text(outcome);
  if (!gain.empty()) out += "; " + escape_html(gain);
  out += ".</p>\n";
  const SurfaceTable table = surface_table(outcome.surface);
  for (const SurfacePattern& pattern : kSurfacePatterns) out += picture(table, pattern, chosen);
  out +=
      "<p>The chosen setting has a frame. It is the default, unless other settings have a clearly "
      "better geometric mean of the three rates; then it is the setting with the least in flight "
      "within 2 % of the best. Good settings were measured more often. On a drive whose speed "
      "moves, "
      "means of unequal numbers of rounds give only a rough picture.</p>\n<h2>swap, by reads in a "
      "row "
      "while a write waits</h2>\n<table>\n" +
      html_row({"reads", "GB/s"}, "th");
  for (const SwapRates& order : outcome.swap) {
    out += html_row({std::to_string(order.reads_per_write) +
                         (order.reads_per_write == outcome.reads_per_write ? " (chosen)" : ""),
                     format_gigabytes(nvme::geometric_mean(order.rounds))},
                    "td");
  }
  return out + "</table>\n<p>" + escape_html(polling_text(outcome)) + ".</p>\n" + html_end();
}

}  // namespace sluice::cli
