#include "sluice/plan/plan_text.hpp"

#include <algorithm>
#include <vector>

#include "sluice/base/bytes.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/plan.hpp"
#include "text/group_text.hpp"

namespace sluice::plan {

std::string compute_name(const Plan& plan) {
  return plan.device.gpu ? name_of(*plan.device.gpu) : "the host";
}

namespace {

// A cell of the table; "-" for nothing.
std::string cell(std::uint64_t size_bytes) {
  return size_bytes == 0 ? "-" : format_bytes(size_bytes);
}

// Bytes written by a step, on the average of committed steps and others.
std::uint64_t average_written_per_step(const Plan& plan) {
  const auto every = static_cast<std::uint64_t>(plan.config.sluice.commit_every);
  const std::uint64_t between = plan.traffic.nvme_written_between_commits_bytes;
  return between + (plan.traffic.nvme_written_bytes - between) / every;
}

std::string traffic_line(const Plan& plan) {
  std::string text = "each step: " + format_bytes(plan.traffic.h2d_bytes) + " to the device, " +
                     format_bytes(plan.traffic.d2h_bytes) + " back; the drive reads " +
                     format_bytes(plan.traffic.nvme_read_bytes) + " and writes " +
                     format_bytes(plan.traffic.nvme_written_bytes);
  if (plan.traffic.nvme_written_between_commits_bytes < plan.traffic.nvme_written_bytes)
    text +=
        ", " + format_bytes(plan.traffic.nvme_written_between_commits_bytes) + " between commits";
  if (plan.traffic.nvme_cached_bytes > 0)
    text += "; the cache saves it " + format_bytes(plan.traffic.nvme_cached_bytes) + " of reading";
  return text + "\n";
}

// Empty where a step writes nothing, or the configuration gives no rated endurance.
std::string endurance_line(const Plan& plan) {
  const std::size_t drives = std::max<std::size_t>(1, plan.directories.states.size());
  const std::uint64_t rated =
      checked_mul(plan.config.sluice.io.drive_endurance_bytes, static_cast<std::uint64_t>(drives));
  const std::uint64_t written = average_written_per_step(plan);
  if (rated == 0 || written == 0) return "";
  return "endurance: " + std::string(drives > 1 ? "drives" : "a drive") + " rated for " +
         format_bytes(rated) + (drives > 1 ? " together" : "") + " " +
         (drives > 1 ? "take" : "takes") + " the writes of " + std::to_string(rated / written) +
         " such steps\n";
}

bool any_frozen(const Plan& plan) {
  return std::any_of(plan.layouts.begin(), plan.layouts.end(),
                     [](const zero::UnitLayout& layout) { return layout.frozen; });
}

// Adds the rows of the budgets, the shortage and the least budgets.
void add_budgets(const Plan& plan, std::vector<std::vector<std::string>>& rows) {
  rows.push_back({"budget", format_bytes(*plan.budget.device_bytes),
                  format_bytes(*plan.budget.host_bytes), "-", ""});
  const auto short_by = [](std::uint64_t need, std::uint64_t budget) {
    return need > budget ? format_bytes(need - budget) : std::string("-");
  };
  if (plan.planned.tiers.device > *plan.budget.device_bytes ||
      plan.planned.tiers.host > *plan.budget.host_bytes) {
    rows.push_back({"short by", short_by(plan.planned.tiers.device, *plan.budget.device_bytes),
                    short_by(plan.planned.tiers.host, *plan.budget.host_bytes), "-", ""});
  }
  rows.push_back({"least possible", format_bytes(plan.least.device_bytes),
                  format_bytes(plan.least.host_bytes), "-",
                  "both at once: everything spilled, nothing ahead"});
}

// The lines above the table: the device, and the model's size.
std::string headline(const Plan& plan) {
  std::string text = "computes on: " + compute_name(plan) +
                     "\nmodel: " + format_count(plan.model_size.parameters) +
                     " parameters, training state " + format_bytes(plan.model_size.state_bytes) +
                     " (" + std::to_string(plan.model_size.bytes_per_parameter) +
                     " bytes per parameter" + (any_frozen(plan) ? " that trains)" : ")");
  if (plan.budget.device_bytes) {
    const double ratio = static_cast<double>(plan.model_size.state_bytes) /
                         static_cast<double>(*plan.budget.device_bytes + *plan.budget.host_bytes);
    if (ratio >= 1) text += format_number(", %.1f times the budgets", ratio);
  }
  return text;
}

}  // namespace

std::string plan_table(const Plan& plan) {
  std::vector<std::vector<std::string>> rows = {{"", "device", "host", "nvme", ""}};
  for (const PlanRow& row : plan.planned.rows) {
    rows.push_back({row.component, cell(row.bytes.device), cell(row.bytes.host),
                    cell(row.bytes.nvme), row.note});
  }
  rows.push_back({"need", cell(plan.planned.tiers.device), cell(plan.planned.tiers.host),
                  cell(plan.planned.tiers.nvme), ""});
  if (plan.budget.device_bytes) add_budgets(plan, rows);
  std::string text = headline(plan);
  text += "\n\n" + format_table(rows);
  if (const std::string groups = groups_text(plan); !groups.empty()) text += "\n" + groups;
  text += "\noutside the tiers: " + format_bytes(plan.planned.runtime_bytes) +
          " (LibTorch, oneDNN, the program itself)\n";
  for (const DiskNeed& disk : plan.directories.disks) {
    text += "disk: " + disk.name + " needs " + format_bytes(disk.needed_bytes) +
            (disk.free_bytes ? ", " + format_bytes(*disk.free_bytes) + " available" +
                                   (disk.shares_file_system ? " beside the other directories" : "")
                             : "; it does not exist yet: create it before training") +
            "\n";
  }
  return text + traffic_line(plan) + endurance_line(plan);
}

}  // namespace sluice::plan
