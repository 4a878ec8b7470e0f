#include "page/html_page.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "files/output_file.hpp"
#include "sluice/base/error.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {
constexpr std::string_view kPageBegin = "<!doctype html>";
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

namespace {

// The classes c0 to c13 give lines, areas and squares their colour, in light and in dark.
constexpr const char* kStyle =
    ":root{color-scheme:light dark;--ink:#1f2937;--muted:#6b7280;--rule:#e5e7eb;--code:#f3f4f6;"
    "--page:#fff}"
    ".c0{--c:#2563eb}.c1{--c:#d97706}.c2{--c:#059669}.c3{--c:#7c3aed}.c4{--c:#dc2626}"
    ".c5{--c:#0891b2}.c6{--c:#db2777}.c7{--c:#64748b}.c8{--c:#65a30d}.c9{--c:#92400e}"
    ".c10{--c:#115e59}.c11{--c:#4338ca}.c12{--c:#9f1239}.c13{--c:#111827}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--muted:#9ca3af;--rule:#374151;"
    "--code:#1f2937;--page:#111827}.c0{--c:#60a5fa}.c1{--c:#fbbf24}.c2{--c:#34d399}"
    ".c3{--c:#a78bfa}.c4{--c:#f87171}.c5{--c:#22d3ee}.c6{--c:#f472b6}.c7{--c:#94a3b8}"
    ".c8{--c:#a3e635}.c9{--c:#d6a06c}.c10{--c:#2dd4bf}.c11{--c:#a5b4fc}.c12{--c:#fda4af}"
    ".c13{--c:#f9fafb}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:54rem;margin:2rem auto;padding:0 1rem;"
    "color:var(--ink);background:var(--page)}h1{font-size:1.3rem}h2{font-size:1.05rem;"
    "margin:2rem 0 .3rem}p{margin:.4rem 0}code,pre{background:var(--code);padding:.1rem .3rem;"
    "overflow-wrap:anywhere}pre{padding:.6rem;white-space:pre-wrap}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{padding:.25rem .7rem;text-align:right;"
    "vertical-align:top;border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;"
    "white-space:nowrap}"
    "th:first-child,td:first-child,.texts td,.texts th{text-align:left}"
    ".texts td:last-child{white-space:normal;overflow-wrap:anywhere}.legend{color:var(--muted)}"
    ".legend span{white-space:nowrap;margin-left:.6rem}.legend b{color:var(--c)}"
    "svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--muted)}"
    ".grid{stroke:var(--rule)}.line{fill:none;stroke:var(--c);stroke-width:2;"
    "stroke-linejoin:round}.band{fill:var(--c);opacity:.2}.area,.dot,.mark,.span{fill:var(--c)}"
    ".edge{stroke:var(--ink)}.track{fill:var(--rule)}.gauge{width:9rem;height:1.1rem;"
    "vertical-align:middle}.wide{overflow-x:auto}"
    // A phone: charts shrink to its width, with larger letters, which may reach into the margin.
    "@media(max-width:40rem){svg text{font-size:20px}.wide>svg,.wide:has(>svg){overflow:visible}"
    "th,td{padding:.25rem .3rem;font-size:.8rem;white-space:normal}.gauge{width:3rem}"
    ".texts td:first-child{width:7rem}}";

}  // namespace

std::string html_begin(std::string_view title) {
  return std::string(kPageBegin) +
         "\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>" +
         escape_html(title) + "</title>\n<style>" + kStyle + "</style></head><body>\n";
}

std::string html_end() {
  return "</body></html>\n";
}

std::string html_gauge(double part, int colour, const std::vector<double>& edges) {
  constexpr double kWide = 256;
  const auto x = [&](double share) {
    return svg_number(kWide * (std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0));
  };
  std::string out = "<svg class=\"gauge\" viewBox=\"0 0 256 18\"><rect class=\"track\" width=\"" +
                    x(1) + "\" height=\"18\"/><rect class=\"area c" + std::to_string(colour) +
                    "\" width=\"" + x(part) + "\" height=\"18\"/>";
  for (const double edge : edges) {
    out += "<line class=\"edge\" x1=\"" + x(edge) + "\" x2=\"" + x(edge) +
           "\" y1=\"0\" y2=\"18\" stroke-width=\"2\"/>";
  }
  return out + "</svg>";
}

std::string html_row(const std::vector<std::string>& cells, const char* tag) {
  std::string out = "<tr>";
  for (const std::string& cell : cells)
    out += "<" + std::string(tag) + ">" + escape_html(cell) + "</" + tag + ">";
  return out + "</tr>\n";
}

std::string svg_number(double value) {
  return format_number("%.1f", value);
}

void check_page_path(const std::string& flag, const std::string& path,
                     const std::vector<std::string>& inputs, const std::string& what_inputs_are) {
  check_writable(flag, path, inputs, what_inputs_are);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::string begin(kPageBegin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  SLUICE_CHECK(file.gcount() == 0 || begin == kPageBegin,
               flag + ": " + path +
                   ": holds something else than a page, and would be replaced; give another name");
}

}  // namespace sluice::cli
