#include "sluice/train/report.hpp"

#include <algorithm>
#include <cmath>

#include "record/links.hpp"
#include "sluice/base/json/json_writer.hpp"
#include "sluice/base/text.hpp"
#include "sluice/plan/json_values.hpp"

namespace sluice::train {

namespace {

// %.17g gives every double back; JSON has no NaN and no infinity.
std::string number(double value) {
  return std::isfinite(value) ? format_number("%.17g", value) : "null";
}
std::string rounded(double value) {
  return std::isfinite(value) ? format_number("%.6g", value) : "null";
}

Json::Value to_value(const LinkBytes& bytes) {
  Json::Value value(Json::objectValue);
  for (const auto& [name, link] : kByteLinks) {
    if (link != &LinkBytes::network) value[name] = Json::UInt64(bytes.*link);
  }
  return value;
}

Json::Value finite_or_null(double value) {
  return std::isfinite(value) ? Json::Value(value) : Json::Value();
}

// A number of each rank as its least, median and most.
void add_spread(std::vector<double> sorted, Json::Value& value) {
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  value["least"] = finite_or_null(sorted.front());
  value["median"] = finite_or_null(
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2);
  value["most"] = finite_or_null(sorted.back());
}

Json::Value to_value(const RankNumbers& ranks) {
  Json::Value value(Json::objectValue);
  value["count"] = Json::UInt64(ranks.by_rank.size());
  for (std::size_t i = 0; i < ranks.names.size(); ++i) {
    Json::Value& number = value["numbers"][ranks.names[i]];
    std::vector<double> all;
    for (const std::vector<double>& rank : ranks.by_rank) {
      number["by_rank"].append(finite_or_null(rank[i]));
      all.push_back(rank[i]);
    }
    add_spread(std::move(all), number);
  }
  return value;
}

Json::Value to_value(const std::vector<ReportedCalls>& calls) {
  Json::Value all(Json::arrayValue);
  for (const ReportedCalls& each : calls) {
    Json::Value value(Json::objectValue);
    value["operation"] = each.operation;
    if (!each.label.empty()) value["of"] = each.label;
    value["message_bytes"] = Json::UInt64(each.message_bytes);
    value["count"] = Json::UInt64(each.calls);
    value["total_seconds"] = each.seconds;
    add_spread(each.mean_seconds, value["average_seconds"]);
    value["algorithm_gbps"] = finite_or_null(each.algorithm_gbps);
    value["bus_gbps"] = finite_or_null(each.bus_gbps);
    all.append(value);
  }
  return all;
}

void add_speed(const ReportedSpeed& speed, Json::Value& root) {
  root["tokens_per_second"] = finite_or_null(speed.tokens_per_second);
  root["step_seconds"] = finite_or_null(speed.step_seconds);
  const LinkSeconds& limits = speed.limits;
  for (const auto& [name, link] : kTimedLinks) {
    if (link != &LinkSeconds::network || limits.network > 0)
      root["limits_seconds"][name] = limits.*link;
  }
  root["bound_by"] = speed.bound_by;
  root["update"]["bytes"] = Json::UInt64(speed.update_bytes);
  const double of_cores = (1 - speed.update_share_of_gpu) * static_cast<double>(speed.update_bytes);
  root["update"]["GBps"] = finite_or_null(1e-9 * of_cores / limits.update);
  root["update"]["share_of_gpu"] = speed.update_share_of_gpu;
  root["speculative_updates"]["kept"] = Json::UInt64(speed.speculation.kept);
  root["speculative_updates"]["dropped"] = Json::UInt64(speed.speculation.dropped);
  root["speculative_updates"]["dropped_seconds"] = speed.speculation.dropped_seconds;
  root["start_seconds"]["plan"] = speed.start.plan;
  root["start_seconds"]["memory"] = speed.start.memory;
  root["start_seconds"]["states"] = speed.start.states;
  root["predicted"] = speed.predicted ? to_value(*speed.predicted) : Json::Value();
}

// A member of an object's text.
void add_member(const char* name, const std::string& value, std::string& object) {
  object += std::string(object == "{" ? "\"" : ",\"") + name + "\":" + value;
}

std::string bytes_text(const StepRecord& record) {
  std::string text = "{";
  for (const auto& [name, link] : kByteLinks) {
    if (link != &LinkBytes::network || record.ranks > 1)
      add_member(name, std::to_string(record.bytes.*link), text);
  }
  return text + "}";
}

std::string stalls_text(const StepRecord& record) {
  std::string text = "{";
  for (const auto& [name, link] : kTimedLinks) {
    if (link == &LinkSeconds::compute) continue;
    if (link != &LinkSeconds::network || record.ranks > 1)
      add_member(name, rounded(record.stall_seconds.*link), text);
  }
  return text + "}";
}

}  // namespace

std::string to_json_line(const StepRecord& record) {
  std::string line =
      "{\"step\":" + std::to_string(record.step) + ",\"loss\":" + number(record.loss) +
      ",\"lr\":" + number(record.lr) + ",\"grad_norm\":" + number(record.grad_norm) +
      ",\"tokens\":" + std::to_string(record.tokens) + ",\"seconds\":" + rounded(record.seconds) +
      ",\"skipped\":" + (record.skipped ? "true" : "false");
  if (record.loss_scale) line += ",\"loss_scale\":" + number(*record.loss_scale);
  line += ",\"bytes\":" + bytes_text(record) + ",\"stall_seconds\":" + stalls_text(record);
  line += ",\"commit_seconds\":" + rounded(record.commit_seconds) +
          ",\"compute_seconds\":" + rounded(record.compute_seconds);
  if (record.eval_loss) line += ",\"eval_loss\":" + number(*record.eval_loss);
  return line + "}";
}

std::string to_json(const RunReport& report) {
  Json::Value root(Json::objectValue);
  root["parameters"] = Json::UInt64(report.parameters);
  root["state_bytes"] = Json::UInt64(report.state_bytes);
  root["budget_bytes"] = to_value(report.memory.budget);
  root["planned_bytes"] = to_value(report.memory.planned);
  root["peak_bytes"] = to_value(report.memory.peak);
  root["peak_bytes"]["pinned"] = Json::UInt64(report.memory.pinned_peak_bytes);
  root["peak_bytes"]["device_gaps"] = Json::UInt64(report.memory.device_gap_peak_bytes);
  root["runtime_bytes"]["planned"] = Json::UInt64(report.memory.runtime_planned_bytes);
  root["runtime_bytes"]["measured"] = Json::UInt64(report.memory.runtime_peak_bytes);
  root["rss_peak_bytes"] = Json::UInt64(report.memory.rss_peak_bytes);
  add_speed(report.speed, root);
  root["bytes_per_step"]["planned"] = to_value(report.traffic.planned_step);
  root["bytes_per_step"]["measured"] = to_value(report.traffic.measured_step);
  root["drives"] = Json::Value(Json::arrayValue);
  for (const DriveUse& drive : report.traffic.drives) {
    Json::Value value(Json::objectValue);
    value["directory"] = drive.directory;
    value["read_bytes"] = Json::UInt64(drive.read_bytes);
    value["written_bytes"] = Json::UInt64(drive.written_bytes);
    value["busy_seconds"] = drive.busy_seconds;
    root["drives"].append(value);
  }
  root["life_written_bytes"] = Json::UInt64(report.traffic.life_written_bytes);
  root["rated_bytes"] = Json::UInt64(report.traffic.rated_bytes);
  root["eval_loss"] =
      report.losses.evaluation ? finite_or_null(*report.losses.evaluation) : Json::Value();
  root["last_loss"] = report.losses.last ? finite_or_null(*report.losses.last) : Json::Value();
  if (report.losses.loss_scale) root["loss_scale"] = *report.losses.loss_scale;
  if (!report.ranks.by_rank.empty()) root["ranks"] = to_value(report.ranks);
  if (!report.calls.empty()) root["calls"] = to_value(report.calls);
  root["steps"] = Json::Int64(report.steps);
  root["last_step"] = Json::Int64(report.last_step);
  root["committed_step"] = Json::Int64(report.committed_step);
  root["skipped_steps"] = Json::Int64(report.skipped_steps);
  root["missed_checkpoints"] = Json::Int64(report.missed_checkpoints);
  root["choices"] = Json::Value(Json::arrayValue);
  for (const std::string& choice : report.choices) root["choices"].append(choice);
  root["notices"] = Json::Value(Json::arrayValue);
  for (const std::string& notice : report.notices) root["notices"].append(notice);
  root["versions"] = Json::Value(Json::objectValue);
  for (const auto& [name, version] : report.versions) root["versions"][name] = version;
  root["commit"] = report.commit;
  root["command"] = report.command_line;
  return json_line(root);
}

}  // namespace sluice::train
