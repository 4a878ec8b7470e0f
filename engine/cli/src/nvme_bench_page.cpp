// The page of `sluice nvme bench --html`: self-contained, no script, no request to anywhere.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "html_page.hpp"
#include "nvme_bench.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kWidth = 820;
constexpr double kHeight = 300;
constexpr double kLeft = 60;
constexpr double kBottom = 40;
constexpr double kTop = 16;
constexpr const char* kColours[] = {"#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626"};

// 1, 2 or 5 times a power of ten, so that about `count` of them make `range`.
double tick_of(double range, int count) {
  const double rough = std::max(range, 1e-9) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

// Throughput over time, one line for each path.
class Chart {
 public:
  explicit Chart(const std::vector<BenchOutcome>& outcomes) : outcomes_(outcomes) {
    for (const BenchOutcome& outcome : outcomes) {
      for (const BenchSample& sample : outcome.samples) {
        last_seconds_ = std::max(last_seconds_, sample.seconds);
        most_ = std::max(most_, 1e-9 * sample.bytes_per_second);
      }
      for (const double rate : fio_rates(outcome)) most_ = std::max(most_, 1e-9 * rate);
    }
    most_ = tick_of(most_, 5) * std::ceil(most_ / tick_of(most_, 5));
  }

  std::string svg() const {
    std::string out = "<svg viewBox=\"0 0 " + svg_number(kWidth) + " " + svg_number(kHeight) +
                      "\" role=\"img\" aria-label=\"throughput over time\">\n";
    const double rate_tick = tick_of(most_, 5);
    for (double rate = 0; rate <= most_ * 1.001; rate += rate_tick) {
      out += "<line class=\"grid\" x1=\"" + svg_number(kLeft) + "\" x2=\"" + svg_number(kWidth) +
             "\" y1=\"" + svg_number(y(rate)) + "\" y2=\"" + svg_number(y(rate)) +
             "\"/><text x=\"" + svg_number(kLeft - 8) + "\" y=\"" + svg_number(y(rate) + 4) +
             "\" text-anchor=\"end\">" + format_number("%g", rate) + "</text>\n";
    }
    const double time_tick = tick_of(last_seconds_, 8);
    for (double time = 0; time <= last_seconds_ * 1.001; time += time_tick) {
      out += "<text x=\"" + svg_number(x(time)) + "\" y=\"" + svg_number(kHeight - kBottom + 18) +
             "\" text-anchor=\"middle\">" + format_number("%g", time) + "</text>\n";
    }
    out += "<text x=\"" + svg_number((kLeft + kWidth) / 2) + "\" y=\"" + svg_number(kHeight - 4) +
           "\" text-anchor=\"middle\">" + (outcomes_.front().fio ? "round" : "seconds") +
           "</text>\n";
    for (std::size_t i = 0; i < outcomes_.size(); ++i) out += line_of(i);
    return out + "</svg>\n";
  }

 private:
  double x(double seconds) const {
    return kLeft + (kWidth - kLeft - 12) * seconds / std::max(last_seconds_, 1e-9);
  }
  double y(double rate) const {
    return kHeight - kBottom - (kHeight - kBottom - kTop) * rate / std::max(most_, 1e-9);
  }
  std::string line_of(std::size_t index) const {
    std::string points;
    for (const BenchSample& sample : outcomes_[index].samples) points += point_of(sample);
    std::string lines = polyline(index, points, "");
    std::string fio_points;
    double round = 0;
    for (const double rate : fio_rates(outcomes_[index])) fio_points += point_of({++round, rate});
    if (!fio_points.empty()) lines += polyline(index, fio_points, " stroke-dasharray=\"4 4\"");
    return lines;
  }
  std::string point_of(const BenchSample& sample) const {
    return svg_number(x(sample.seconds)) + "," + svg_number(y(1e-9 * sample.bytes_per_second)) +
           " ";
  }
  static std::string polyline(std::size_t index, const std::string& points,
                              const std::string& more) {
    return "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" +
           std::string(kColours[index % std::size(kColours)]) + "\"" + more + " points=\"" +
           points + "\"/>\n";
  }
  static std::vector<double> fio_rates(const BenchOutcome& outcome) {
    return outcome.fio ? outcome.fio->rates : std::vector<double>();
  }

  const std::vector<BenchOutcome>& outcomes_;
  double last_seconds_ = 0;
  double most_ = 0;
};

std::string microseconds(const nvme::LatencyHistogram& latencies, double share) {
  if (latencies.count() == 0) return "-";
  return format_number("%.0f", 1e-3 * static_cast<double>(latencies.quantile(share).count()));
}

std::string table(const std::vector<BenchOutcome>& outcomes, CpuTime cpu) {
  std::string out = "<table>\n" + html_row({"path", "direction", "GB/s", "requests", "p50 us",
                                            "p99 us", "p99.9 us", "CPU s/GiB", "sluice / fio"},
                                           "th");
  for (const BenchOutcome& outcome : outcomes) {
    const nvme::LoadResult& result = outcome.result;
    for (const bool reads : {true, false}) {
      const auto& latencies = reads ? result.latency.reads : result.latency.writes;
      const std::uint64_t bytes = reads ? result.read_bytes : result.written_bytes;
      if (bytes == 0) continue;
      out += html_row(
          {outcome.path, reads ? "read" : "write",
           format_number("%.2f", 1e-9 * static_cast<double>(bytes) / result.seconds),
           std::to_string(latencies.count()), microseconds(latencies, 0.5),
           microseconds(latencies, 0.99), microseconds(latencies, 0.999),
           cpu == CpuTime::known ? format_number("%.3f", result.cpu_seconds_per_gib()) : "-",
           outcome.fio ? format_number("%.3f", nvme::quantile_of(outcome.fio->ratios, 0.5)) : "-"},
          "td");
    }
  }
  return out + "</table>\n";
}

}  // namespace

std::string bench_title(const NvmeBenchArguments& arguments, const BenchOutcome& outcome) {
  std::string title =
      std::string(name_of(arguments.pattern)) + ", " + std::string(name_of(arguments.access)) +
      ", " + format_bytes(outcome.size_bytes) + " in blocks of " +
      format_bytes(arguments.block_bytes) + ", depth " + std::to_string(arguments.depth);
  if (arguments.reads_per_write)
    title += ", reads in a row: " + std::to_string(*arguments.reads_per_write);
  title += ", " + outcome.backend;
  if (arguments.tensors) title += ", tensors: " + std::to_string(*arguments.tensors);
  return title;
}

std::string bench_page(const NvmeBenchArguments& arguments,
                       const std::vector<BenchOutcome>& outcomes, const std::string& command_line) {
  std::string out = html_begin("sluice nvme bench");
  out += "<h1>" + escape_html(bench_title(arguments, outcomes.front())) + "</h1>\n";
  out += "<p><code>" + escape_html(command_line) + "</code></p>\n<p>GB/s";
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    out += " <span style=\"color:" + std::string(kColours[i % std::size(kColours)]) +
           "\">&#9632; " + escape_html(outcomes[i].path) + "</span>";
    if (outcomes[i].fio) out += ", dashed: <code>" + escape_html(outcomes[i].fio_line) + "</code>";
  }
  out += "</p>\n" + Chart(outcomes).svg() + table(outcomes, cpu_time_of(arguments));
  return out + html_end();
}

}  // namespace sluice::cli
