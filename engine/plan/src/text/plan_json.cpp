#include "sluice/base/json/json_writer.hpp"
#include "sluice/plan/json_values.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/plan_text.hpp"
#include "sluice/plan/prediction.hpp"
#include "text/group_text.hpp"

namespace sluice::plan {

Json::Value to_value(const TierBytes& bytes) {
  Json::Value value(Json::objectValue);
  value["device"] = Json::UInt64(bytes.device);
  value["host"] = Json::UInt64(bytes.host);
  value["nvme"] = Json::UInt64(bytes.nvme);
  return value;
}

Json::Value to_value(const Prediction& prediction) {
  Json::Value value(Json::objectValue);
  value["step_seconds"] = prediction.step_seconds;
  value["tokens_per_second"] = prediction.tokens_per_second;
  for (const auto& [link, seconds] : prediction.links()) value["limits_seconds"][link] = seconds;
  value["bound_by"] = prediction.bound_by;
  return value;
}

namespace {

// Bytes of a step, by link.
void add_traffic(const Plan& plan, Json::Value& root) {
  root["bytes_per_step"]["h2d"] = Json::UInt64(plan.traffic.h2d_bytes);
  root["bytes_per_step"]["d2h"] = Json::UInt64(plan.traffic.d2h_bytes);
  root["bytes_per_step"]["nvme_read"] = Json::UInt64(plan.traffic.nvme_read_bytes);
  root["bytes_per_step"]["nvme_write"] = Json::UInt64(plan.traffic.nvme_written_bytes);
  root["bytes_per_step"]["nvme_write_between_commits"] =
      Json::UInt64(plan.traffic.nvme_written_between_commits_bytes);
  root["bytes_per_step"]["nvme_cached"] = Json::UInt64(plan.traffic.nvme_cached_bytes);
}

// Disk space by directory.
void add_disks(const Plan& plan, Json::Value& root) {
  root["disks"] = Json::Value(Json::arrayValue);
  for (const DiskNeed& disk : plan.directories.disks) {
    Json::Value value(Json::objectValue);
    value["directory"] = disk.directory;
    value["needed_bytes"] = Json::UInt64(disk.needed_bytes);
    value["free_bytes"] =
        disk.free_bytes ? Json::Value(Json::UInt64(*disk.free_bytes)) : Json::Value();
    root["disks"].append(value);
  }
}

// Null where the drive is not asked about, or where not one block fits.
void add_largest(const std::vector<LargestModel>& largest, Json::Value& root) {
  if (largest.empty()) return;
  root["largest"]["without_nvme"] = root["largest"]["with_nvme"] = Json::Value();
  for (const LargestModel& model : largest) {
    if (model.layers == 0) continue;
    Json::Value& value = root["largest"][model.nvme_path.empty() ? "without_nvme" : "with_nvme"];
    value["layers"] = Json::Int64(model.layers);
    value["parameters"] = Json::UInt64(model.parameters);
  }
}

}  // namespace

std::string plan_json(const Plan& plan, const std::optional<Prediction>& prediction,
                      const std::vector<LargestModel>& largest) {
  Json::Value root(Json::objectValue);
  root["computes_on"] = compute_name(plan);
  root["parameters"] = Json::UInt64(plan.model_size.parameters);
  root["state_bytes"] = Json::UInt64(plan.model_size.state_bytes);
  root["optimizer"] = std::string(config::name_of(plan.config.optimizer.type));
  root["groups"] = groups_json(plan);
  root["planned_bytes"] = to_value(plan.planned.tiers);
  root["pinned_bytes"] = Json::UInt64(plan.planned.pinned_bytes);
  root["runtime_bytes"] = Json::UInt64(plan.planned.runtime_bytes);
  if (plan.budget.device_bytes) {
    root["budget_bytes"]["device"] = Json::UInt64(*plan.budget.device_bytes);
    root["budget_bytes"]["host"] = Json::UInt64(*plan.budget.host_bytes);
    root["least_bytes"]["device"] = Json::UInt64(plan.least.device_bytes);
    root["least_bytes"]["host"] = Json::UInt64(plan.least.host_bytes);
  }
  root["rows"] = Json::Value(Json::arrayValue);
  for (const PlanRow& row : plan.planned.rows) {
    Json::Value value = to_value(row.bytes);
    value["component"] = row.component;
    value["note"] = row.note;
    root["rows"].append(value);
  }
  add_disks(plan, root);
  add_traffic(plan, root);
  root["threads"]["compute"] = plan.schedule.threads.compute;
  root["threads"]["optimizer"] = plan.schedule.threads.optimizer;
  root["threads"]["io"] = plan.schedule.threads.io;
  if (prediction) root["predicted"] = to_value(*prediction);
  if (!plan.own_loop()) root["layers"] = Json::Int64(plan.model.n_layer);
  add_largest(largest, root);
  root["choices"] = Json::Value(Json::arrayValue);
  for (const std::string& choice : plan.choices) root["choices"].append(choice);
  return json_line(root);
}

}  // namespace sluice::plan
