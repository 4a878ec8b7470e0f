#include "train/train_summary.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/offload/swap_state.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

std::string budget_cell(std::uint64_t size_bytes) {
  return size_bytes == 0 ? "-" : format_bytes(size_bytes);  // 0: not limited
}

std::string tier_table(const train::RunReport& report) {
  const auto row = [](const char* tier, std::uint64_t budget, std::uint64_t planned,
                      std::uint64_t peak) {
    return std::vector<std::string>{tier, budget_cell(budget), format_bytes(planned),
                                    format_bytes(peak)};
  };
  std::vector<std::vector<std::string>> rows = {{"tier", "budget", "planned", "peak"}};
  rows.push_back(row("device", report.memory.budget.device, report.memory.planned.device,
                     report.memory.peak.device));
  if (report.memory.device_gap_peak_bytes > 0)
    rows.push_back({"  free in gaps", "", "", format_bytes(report.memory.device_gap_peak_bytes)});
  rows.push_back(
      row("host", report.memory.budget.host, report.memory.planned.host, report.memory.peak.host));
  if (report.memory.pinned_peak_bytes > 0)
    rows.push_back({"  pinned part", "", "", format_bytes(report.memory.pinned_peak_bytes)});
  rows.push_back(
      row("nvme", report.memory.budget.nvme, report.memory.planned.nvme, report.memory.peak.nvme));
  rows.push_back(
      row("runtime", 0, report.memory.runtime_planned_bytes, report.memory.runtime_peak_bytes));
  return format_table(rows) +
         "memory of the process: " + format_bytes(report.memory.rss_peak_bytes) +
         " at its peak; runtime is what LibTorch and the program hold outside the tiers\n";
}

std::string limit_table(const train::RunReport& report) {
  if (report.speed.bound_by.empty()) return "";  // no step was made
  std::vector<std::pair<const char*, double>> links = {
      {"compute", report.speed.limits.compute},
      {"update", report.speed.limits.update},
      {"host to device", report.speed.limits.h2d},
      {"device to host", report.speed.limits.d2h},
      {"nvme read", report.speed.limits.nvme_read},
      {"nvme write", report.speed.limits.nvme_written},
  };
  if (report.speed.limits.network > 0)
    links.emplace_back("network", report.speed.limits.network);  // of several ranks
  std::vector<std::vector<std::string>> rows = {{"link", "busy seconds", "share of a step"}};
  for (const auto& [name, seconds] : links) {
    const double share =
        report.speed.step_seconds > 0 ? 100 * seconds / report.speed.step_seconds : 0;
    rows.push_back({name, format_number("%.3f", seconds), format_number("%.0f %%", share)});
  }
  std::string text = format_table(rows) +
                     "links work at the same time, so their shares do not add up\nbound by " +
                     report.speed.bound_by + ": a step takes " +
                     format_number("%.3f s", report.speed.step_seconds) + " (median), " +
                     format_rate(report.speed.tokens_per_second, "tokens/s");
  if (report.speed.predicted)
    text += "; predicted: " + format_number("%.3f s", report.speed.predicted->step_seconds) +
            ", bound by " + report.speed.predicted->bound_by;
  return text + "\n\n";
}

std::string byte_table(const train::RunReport& report) {
  if (report.last_step == 0 || report.speed.bound_by.empty()) return "";
  const train::LinkBytes& planned = report.traffic.planned_step;
  const train::LinkBytes& measured = report.traffic.measured_step;
  const auto row = [](const char* link, std::uint64_t of_plan, std::uint64_t of_step) {
    return std::vector<std::string>{link, format_bytes(of_plan), format_bytes(of_step)};
  };
  return format_table({{"bytes of a step", "planned", "measured"},
                       row("host to device", planned.h2d, measured.h2d),
                       row("device to host", planned.d2h, measured.d2h),
                       row("nvme read", planned.nvme_read, measured.nvme_read),
                       row("nvme write", planned.nvme_written, measured.nvme_written)}) +
         "\n";
}

// Written bytes wear a drive out, so the line shows their share of the drive's rating.
std::string endurance_line(const train::RunReport& report) {
  if (report.traffic.rated_bytes == 0) return "";
  const double share = 100.0 * static_cast<double>(report.traffic.life_written_bytes) /
                       static_cast<double>(report.traffic.rated_bytes);
  return "written to this swap directory so far: " +
         format_bytes(report.traffic.life_written_bytes) + ", " + format_number("%.3g %%", share) +
         " of the " + format_bytes(report.traffic.rated_bytes) + " that its drive" +
         (report.traffic.drives.size() > 1 ? "s are" : " is") + " rated for\n";
}

std::string drive_table(const train::RunReport& report) {
  if (report.traffic.drives.size() < 2) return "";
  std::vector<std::vector<std::string>> rows = {{"drive", "read", "written", "busy"}};
  for (const train::DriveUse& drive : report.traffic.drives) {
    rows.push_back({drive.directory, format_bytes(drive.read_bytes),
                    format_bytes(drive.written_bytes),
                    format_number("%.1f s", drive.busy_seconds)});
  }
  return format_table(rows) + "\n";
}

// The calls over the ranks, in the columns of DeepSpeed's summary. Empty without comms_logger.
std::string call_table(const train::RunReport& report) {
  if (report.calls.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"comm. op", "message size", "count", "total latency (ms)", "avg latency (ms)",
       "tput_avg (Gbps)", "busbw_avg (Gbps)", "avg of the ranks, least to most (ms)"}};
  for (const train::ReportedCalls& each : report.calls) {
    const auto [least, most] = std::ranges::minmax(each.mean_seconds);
    rows.push_back(
        {each.operation + (each.label.empty() ? "" : " of " + each.label),
         format_bytes(each.message_bytes), std::to_string(each.calls),
         format_number("%.2f", 1e3 * each.seconds),
         format_number("%.2f", 1e3 * each.seconds / static_cast<double>(each.calls)),
         format_number("%.2f", each.algorithm_gbps), format_number("%.2f", each.bus_gbps),
         format_number("%.2f", 1e3 * least) + " to " + format_number("%.2f", 1e3 * most)});
  }
  return format_table(rows) + "\n";
}

}  // namespace

std::string run_summary(const train::RunReport& report) {
  std::string text = tier_table(report) + "\n" + limit_table(report) + byte_table(report) +
                     call_table(report) + drive_table(report) + endurance_line(report);
  text += "step " + std::to_string(report.last_step) + ", committed " +
          std::to_string(report.committed_step);
  if (report.skipped_steps > 0)
    text += "; " + counted(report.skipped_steps, "step") + " of this run updated nothing";
  if (report.losses.last)
    text += "; loss of this step " + format_number("%.4f", *report.losses.last);
  if (report.losses.evaluation)
    text += ", eval loss " + format_number("%.4f", *report.losses.evaluation);
  return text + "\n";
}

std::string next_steps(const std::string& program, const train::RunReport& report,
                       const plan::Plan& plan, const std::string& model_path) {
  // The directory of all ranks.
  const std::vector<std::string>& states = plan.directories.states;
  const std::string run = states.empty() ? plan.config.sluice.checkpoints.directory
                          : offload::rank_folder_of(states.front())
                              ? std::filesystem::path(states.front()).parent_path().string()
                              : states.front();
  if (run.empty() || report.committed_step == 0) {
    return "the weights are not kept: no step was committed to a directory\n";
  }
  const std::string directory = run.starts_with('-') ? "./" + run : run;  // it is no flag
  // In the run's own directory export writes nothing.
  std::error_code error;
  const bool is_here = std::filesystem::equivalent(directory, ".", error);
  const std::string out = is_here ? "../weights.safetensors" : "weights.safetensors";
  return "to export the weights, and to generate text:\n  " +
         shell_line({program, "export", directory, "--out", out}) + "\n  " +
         shell_line({program, "generate", "--model", model_path, "--weights", directory, "--prompt",
                     "TEXT"}) +
         "\n";
}

}  // namespace sluice::cli
