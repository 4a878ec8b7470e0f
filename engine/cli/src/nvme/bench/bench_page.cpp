#include "nvme/bench/bench_page.hpp"

#include <string>
#include <utility>
#include <vector>

#include "page/html_page.hpp"
#include "page/svg_chart.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/nvme/paired_ratios.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr int kColours = 5;

// Throughput over time, one line for each path; fio's line is dashed.
std::vector<ChartLine> lines_of(const std::vector<BenchOutcome>& outcomes) {
  std::vector<ChartLine> lines;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const int colour = static_cast<int>(i) % kColours;
    ChartLine ours{outcomes[i].path, colour, {}, false};
    for (const BenchSample& sample : outcomes[i].samples) {
      const double rate = 1e-9 * sample.bytes_per_second;
      ours.points.push_back({sample.seconds, rate, rate, rate});
    }
    lines.push_back(std::move(ours));
    if (!outcomes[i].fio) continue;
    ChartLine fio{"fio on " + outcomes[i].path, colour, {}, true};
    double round = 0;
    for (const double bytes_per_second : outcomes[i].fio->rates) {
      const double rate = 1e-9 * bytes_per_second;
      fio.points.push_back({++round, rate, rate, rate});
    }
    lines.push_back(std::move(fio));
  }
  return lines;
}

std::string microseconds(const nvme::LatencyHistogram& latencies, double share) {
  if (latencies.count() == 0) return "-";
  return format_number("%.0f", 1e-3 * static_cast<double>(latencies.quantile(share).count()));
}

std::string table(const std::vector<BenchOutcome>& outcomes, CpuTime cpu) {
  std::string out =
      "<div class=\"wide\"><table>\n" + html_row({"path", "direction", "GB/s", "requests", "p50 us",
                                                  "p99 us", "p99.9 us", "CPU s/GiB"},
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
           cpu == CpuTime::known ? format_number("%.3f", result.cpu_seconds_per_gib()) : "-"},
          "td");
    }
  }
  return out + "</table></div>\n";
}

std::vector<std::string> ratio_row(const std::string& what, const std::vector<double>& ratios) {
  const nvme::RatioSummary summary = nvme::summarize_ratios(ratios);
  if (ratios.size() < FioComparison::kLeastRounds)
    return {what, format_number("%.3f", summary.median), "-", "-"};
  const auto range = [](double begin, double end) {
    return format_number("%.3f", begin) + " - " + format_number("%.3f", end);
  };
  return {what, format_number("%.3f", summary.median),
          range(summary.lower_quartile, summary.upper_quartile),
          range(summary.interval_begin, summary.interval_end)};
}

// fio's rate beside ours, and how it was called.
std::string comparison(const BenchOutcome& outcome) {
  std::string out =
      "<p>" +
      escape_html(outcome.path + ": sluice " + format_gigabytes(outcome.result.bytes_per_second()) +
                  " GB/s, fio " + format_gigabytes(outcome.fio->fio.bytes_per_second()) +
                  " GB/s; fio as in") +
      "</p>\n<pre>" + escape_html(outcome.fio_line) + "</pre>\n<table>\n";
  const char* tag = "th";
  for (const std::vector<std::string>& row : comparison_rows(*outcome.fio)) {
    out += html_row(row, tag);
    tag = "td";
  }
  return out + "</table>\n";
}

}  // namespace

std::vector<std::vector<std::string>> comparison_rows(const FioComparison& comparison) {
  return {{"", "median", "quartiles", "90 % interval"},
          ratio_row("sluice / fio", comparison.ratios),
          ratio_row("fio / fio (control)", comparison.controls)};
}

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
  out += "<p><code>" + escape_html(command_line) + "</code></p>\n";
  const std::vector<ChartLine> lines = lines_of(outcomes);
  ChartAxes axes;
  axes.title = "throughput over time";
  axes.x_label = outcomes.front().fio ? "round" : "seconds";
  axes.height = 300;
  out += chart_legend("GB/s", lines) + line_chart(axes, lines) +
         table(outcomes, cpu_time_of(arguments));
  for (const BenchOutcome& outcome : outcomes) {
    if (outcome.fio) out += comparison(outcome);
  }
  return out + html_end();
}

}  // namespace sluice::cli
