#include "report/run_page.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "page/html_page.hpp"
#include "page/svg_chart.hpp"
#include "report/run_timeline.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr double kMebi = 1.0 / (1U << 20U);

enum class Gaps { show, skip };

// One value over the steps, times `factor`.
ChartLine line_of(const RunSteps& steps, StepValue value, const std::string& name, int colour,
                  double factor = 1, Gaps gaps = Gaps::show) {
  ChartLine line{name, colour, {}, false};
  for (const StepBuckets::Bucket& bucket : steps.buckets.all()) {
    const ValueRange& range = bucket[value];
    if (range.count == 0 && gaps == Gaps::skip) continue;
    const double x = 0.5 * static_cast<double>(bucket.first_step + bucket.last_step);
    line.points.push_back({x, range.mean() * factor, range.low * factor, range.high * factor});
  }
  return line;
}

bool is_empty(const ChartLine& line) {
  return std::none_of(line.points.begin(), line.points.end(), [](const ChartPoint& point) {
    return std::isfinite(point.y) && point.y != 0;
  });
}

ChartAxes axes_of(const std::string& title, double height = 240) {
  ChartAxes axes;
  axes.title = title;
  axes.x_label = "step";
  axes.height = height;
  return axes;
}

std::string heading(const std::string& text) {
  return "<h2>" + escape_html(text) + "</h2>\n";
}

std::string paragraph(const std::string& text) {
  return "<p>" + escape_html(text) + "</p>\n";
}

std::string bytes_text(const std::optional<double>& bytes) {
  if (!bytes || !(*bytes >= 0)) return "-";
  return format_bytes(static_cast<std::uint64_t>(*bytes));
}

std::string listed(const std::vector<std::int64_t>& steps, std::uint64_t all) {
  return join(steps, ", ") + (all > steps.size() ? ", ..." : "");
}

std::string summary(const RunRecord& run) {
  const RunSteps& steps = run.steps;
  std::string text;
  const auto say = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  const std::string resumed_after = std::to_string(run.resumed_after);
  const bool is_resumed = steps.count > 0 && run.resumed_after >= steps.first_step;
  if (steps.count > 0) {
    say("steps " + std::to_string(steps.first_step) + " to " + std::to_string(steps.last_step) +
        (is_resumed ? ", resumed after step " + resumed_after : ""));
    if (steps.last_loss) say("last loss " + format_number("%.4f", *steps.last_loss));
  }
  if (steps.last_eval_loss) say("eval loss " + format_number("%.4f", *steps.last_eval_loss));
  if (const auto parameters = number_at(run.report, {"parameters"}))
    say(format_count(static_cast<unsigned long long>(*parameters)) + " parameters, " +
        bytes_text(number_at(run.report, {"state_bytes"})) + " of training state");
  if (steps.seconds > 0)
    say(format_rate(steps.tokens / steps.seconds, "tokens/s") +
        (is_resumed ? " over all these steps" : ""));
  if (const auto speed = number_at(run.report, {"tokens_per_second"}); is_resumed && speed)
    say(format_rate(*speed, "tokens/s") + " since step " + resumed_after);
  if (const std::string bound = text_at(run.report, "bound_by"); !bound.empty())
    say("bound by " + bound);
  std::string out = text.empty() ? "" : paragraph(text + ".");
  if (run.report.isNull())
    out += paragraph(
        "There is no report.json: the run goes on, or it was killed. So memory, limits and choices "
        "are missing here.");
  if (steps.missing > 0)
    out += paragraph("Steps without a line in steps.jsonl: " + std::to_string(steps.missing) +
                     ". Lines of the charts lead over them.");
  if (steps.last_line_is_cut)
    out += paragraph(
        "The last line of steps.jsonl is cut, as a killed run leaves it; this page leaves it out.");
  return out;
}

std::string loss_chart(const RunSteps& steps) {
  std::vector<ChartLine> lines = {line_of(steps, StepValue::loss, "training", 0)};
  ChartLine eval = line_of(steps, StepValue::eval_loss, "evaluation", 1, 1, Gaps::skip);
  if (!eval.points.empty()) lines.push_back(std::move(eval));
  ChartAxes axes = axes_of("loss over the steps", 280);
  axes.y_from = ChartAxes::From::least;
  for (const std::int64_t step : steps.first_skipped)
    axes.marks.push_back({static_cast<double>(step), "step " + std::to_string(step) + ": skipped"});
  std::string out =
      heading("Loss") + chart_legend("nats per token", lines) + line_chart(axes, lines);
  if (steps.skipped > 0)
    out += paragraph("Skipped because of a non-finite loss or gradient (triangles): steps " +
                     listed(steps.first_skipped, steps.skipped) + "; " +
                     std::to_string(steps.skipped) + " in all.");
  if (steps.non_finite > 0)
    out += paragraph("Steps with a non-finite loss, gaps in the line: " +
                     std::to_string(steps.non_finite) + ".");
  return out;
}

std::string speed_charts(const RunSteps& steps) {
  std::string out = heading("Learning rate");
  out += line_chart(axes_of("learning rate over the steps", 180),
                    {line_of(steps, StepValue::lr, "learning rate", 2)});
  out += heading("Tokens per second");
  out += line_chart(axes_of("tokens per second over the steps", 200),
                    {line_of(steps, StepValue::tokens_per_second, "tokens/s", 0)});
  std::vector<ChartLine> parts;
  const std::pair<StepValue, const char*> stacked[] = {
      {StepValue::compute_seconds, "compute"},  {StepValue::stall_update, "waits for update"},
      {StepValue::stall_read, "for nvme read"}, {StepValue::stall_write, "for nvme write"},
      {StepValue::stall_h2d, "for h2d"},        {StepValue::stall_d2h, "for d2h"},
      {StepValue::commit_seconds, "commit"}};
  constexpr int kColours[] = {2, 3, 0, 1, 8, 9, 6};
  for (std::size_t i = 0; i < std::size(stacked); ++i) {
    ChartLine line = line_of(steps, stacked[i].first, stacked[i].second, kColours[i]);
    if (!is_empty(line)) parts.push_back(std::move(line));
  }
  return out + heading("Where the seconds of a step go") + chart_legend("seconds", parts) +
         stacked_chart(axes_of("seconds of a step, computing and waiting"), parts);
}

std::string drive_chart(const RunSteps& steps) {
  std::vector<ChartLine> lines;
  ChartLine written = line_of(steps, StepValue::written_bytes, "written", 1, kMebi);
  written.dashed = true;  // often equal to the line of reads
  std::vector<ChartLine> all = {line_of(steps, StepValue::read_bytes, "read", 0, kMebi), written};
  for (ChartLine& line : all) {
    if (!is_empty(line)) lines.push_back(std::move(line));
  }
  if (lines.empty()) return "";
  return heading("Drive") + chart_legend("MiB per step", lines) +
         line_chart(axes_of("drive bytes per step", 200), lines);
}

std::string resolution_note(const RunSteps& steps) {
  if (steps.buckets.width() == 1) return "";
  return paragraph("A point of a line stands for the mean of " +
                   std::to_string(steps.buckets.width()) +
                   " steps, the band around it for their range.");
}

// A table row; the cells are HTML already.
std::string raw_row(const std::vector<std::string>& cells) {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += "<td>" + cell + "</td>";
  return out + "</tr>\n";
}

std::string limits(const RunRecord& run) {
  const std::optional<double> step_seconds = number_at(run.report, {"step_seconds"});
  const std::string bound = text_at(run.report, "bound_by");
  if (!step_seconds || *step_seconds <= 0 || bound.empty()) return "";
  struct Link {
    const char* key;
    const char* name;
    int colour;
    StepValue bytes;  // count: the link moves no bytes
  };
  constexpr Link kLinks[] = {{"compute", "compute", 2, StepValue::count},
                             {"update", "update (optimizer)", 3, StepValue::count},
                             {"h2d", "host to device", 8, StepValue::h2d_bytes},
                             {"d2h", "device to host", 9, StepValue::d2h_bytes},
                             {"nvme_read", "nvme read", 0, StepValue::read_bytes},
                             {"nvme_write", "nvme write", 1, StepValue::written_bytes}};
  std::string out =
      heading("Limits of a step") +
      paragraph("A step takes " + format_number("%.4g s", *step_seconds) + " (median" +
                (run.resumed_after > 0 ? " since step " + std::to_string(run.resumed_after) : "") +
                "). It cannot be faster than the link that is busy longest: "
                "bound by " +
                bound + ".") +
      "<div class=\"wide\"><table>\n" +
      html_row({"link", "busy s", "of the step", "", "bytes per step", "GB/s while busy"}, "th");
  for (const Link& link : kLinks) {
    const double busy = number_at(run.report, {"limits_seconds", link.key}).value_or(0);
    const bool moves = link.bytes != StepValue::count;
    const double bytes = moves ? run.steps.training[link.bytes].mean() : 0;
    const std::string name = escape_html(link.name);
    out += raw_row({bound == link.key ? "<b>" + name + "</b>" : name, format_number("%.4f", busy),
                    format_number("%.0f %%", 100 * busy / *step_seconds),
                    html_gauge(busy / *step_seconds, link.colour, {}),
                    moves ? escape_html(bytes_text(bytes)) : "",
                    moves && busy > 0 && bytes > 0 ? format_gigabytes(bytes / busy) : ""});
  }
  return out + "</table></div>\n";
}

std::string memory(const RunRecord& run) {
  if (!run.report.isObject() || !run.report["peak_bytes"].isObject()) return "";
  std::string out = heading("Memory") +
                    "<p>Peak of each tier against what was planned (thin line) and the budget "
                    "(end of the bar, where there is one).</p>\n<div class=\"wide\"><table>\n" +
                    html_row({"tier", "budget", "planned", "peak", ""}, "th");
  const auto row = [&](const std::string& name, double budget, std::optional<double> planned,
                       std::optional<double> peak, int colour) {
    const double all = std::max({budget, planned.value_or(0), peak.value_or(0), 1.0});
    std::vector<double> edges;
    if (planned) edges.push_back(*planned / all);
    out += raw_row({escape_html(name), budget > 0 ? escape_html(bytes_text(budget)) : "-",
                    escape_html(bytes_text(planned)), escape_html(bytes_text(peak)),
                    html_gauge(peak.value_or(0) / all, colour, edges)});
  };
  int colour = 0;
  for (const char* tier : {"device", "host", "nvme"}) {
    row(tier, number_at(run.report, {"budget_bytes", tier}).value_or(0),
        number_at(run.report, {"planned_bytes", tier}), number_at(run.report, {"peak_bytes", tier}),
        colour++);
  }
  row("runtime", 0, number_at(run.report, {"runtime_bytes", "planned"}),
      number_at(run.report, {"runtime_bytes", "measured"}), 7);
  return out + "</table></div>\n" +
         paragraph("Pinned memory had " +
                   bytes_text(number_at(run.report, {"peak_bytes", "pinned"})) +
                   " of the host's peak; the process had " +
                   bytes_text(number_at(run.report, {"rss_peak_bytes"})) +
                   " of resident memory at its peak. Runtime is what LibTorch and the program hold "
                   "outside the tiers.");
}

std::string timeline(const RunRecord& run) {
  const std::string how =
      "sluice train --trace " + shell_quote(run.directory + "/trace.json") +
      " writes one (with --trace-steps 5-6 of these steps only); it opens in ui.perfetto.dev too";
  std::string out = heading("Timeline of a step");
  if (run.trace_path.empty()) return out + paragraph("There is no trace of this run: " + how + ".");
  if (!run.traced) {
    return out + paragraph(run.trace_path + " has no whole step. " + how + ".");
  }
  return out +
         paragraph("Step " + std::to_string(run.traced->step) + " of " + run.trace_path +
                   ". The updates of a step run while the next one computes. The mouse shows what "
                   "each span is; ui.perfetto.dev opens the whole file.") +
         step_timeline(*run.traced);
}

std::string settings(const RunRecord& run) {
  std::string rows;
  const auto row = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) rows += html_row({name, value}, "td");
  };
  row("directory", run.directory);
  if (run.report.isObject()) {
    if (const auto step = number_at(run.report, {"committed_step"}))
      row("committed step", format_number("%.0f", *step));
    if (const double written = number_at(run.report, {"life_written_bytes"}).value_or(0);
        written > 0) {
      const double rated = number_at(run.report, {"rated_bytes"}).value_or(0);
      row("written to the swap directory so far",
          bytes_text(written) + (rated > 0
                                     ? ", " + format_number("%.3g %%", 100 * written / rated) +
                                           " of what its drives are rated for"
                                     : ""));
    }
    row("command", text_at(run.report, "command"));
    row("commit", text_at(run.report, "commit"));
    const Json::Value& versions = run.report["versions"];
    if (versions.isObject()) {
      for (const std::string& name : versions.getMemberNames())
        row(name, text_at(versions, name.c_str()));
    }
    const Json::Value& choices = run.report["choices"];
    if (choices.isArray()) {
      for (const Json::Value& choice : choices)
        if (choice.isString()) row("chosen", choice.asString());
    }
  }
  return heading("The run") + "<div class=\"wide\"><table class=\"texts\">\n" + rows +
         "</table></div>\n";
}

}  // namespace

std::string run_page(const RunRecord& run) {
  std::string out = html_begin("sluice run " + run.directory);
  out += "<h1>" + escape_html(run.directory) + "</h1>\n" + summary(run);
  if (run.steps.count > 0) {
    out += loss_chart(run.steps) + speed_charts(run.steps) + limits(run) + drive_chart(run.steps) +
           resolution_note(run.steps);
  }
  return out + memory(run) + timeline(run) + settings(run) + html_end();
}

}  // namespace sluice::cli
