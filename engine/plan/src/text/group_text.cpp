#include "text/group_text.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sluice/base/text.hpp"

namespace sluice::plan {

namespace {

// The values of optimizer.params that groups may differ in, as this optimizer has them.
std::vector<std::pair<std::string, double>> values_of(const config::OptimizerConfig& optimizer) {
  std::vector<std::pair<std::string, double>> values = {{"lr", optimizer.lr},
                                                        {"weight_decay", optimizer.weight_decay}};
  if (optimizer.reads("betas")) {
    values.emplace_back("beta1", optimizer.beta1);
    values.emplace_back("beta2", optimizer.beta2);
  }
  if (optimizer.reads("eps")) values.emplace_back("eps", optimizer.eps);
  if (optimizer.reads("momentum")) values.emplace_back("momentum", optimizer.momentum);
  return values;
}

}  // namespace

std::string groups_text(const Plan& plan) {
  const std::vector<models::ParamGroup>& groups = plan.groups.groups;
  if (!plan.groups.is_divided()) return "";
  const auto first = values_of(groups.front().optimizer);
  std::vector<std::vector<std::string>> rows = {{"parameter group", "tensors", "parameters"}};
  std::vector<std::size_t> shown;  // rate, weight decay, and values that differ
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool differs = std::ranges::any_of(groups, [&](const models::ParamGroup& group) {
      return values_of(group.optimizer)[i].second != first[i].second;
    });
    if (i >= 2 && !differs) continue;
    shown.push_back(i);
    rows.front().push_back(first[i].first);
  }
  for (const models::ParamGroup& group : groups) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {group.name, format_count(group.tensors), format_count(group.elements)};
    for (const std::size_t i : shown)
      row.push_back(format_number("%.9g", values_of(group.optimizer)[i].second));
  }
  return format_table(rows);
}

Json::Value groups_json(const Plan& plan) {
  Json::Value list(Json::arrayValue);
  for (const models::ParamGroup& group : plan.groups.groups) {
    Json::Value value(Json::objectValue);
    value["name"] = group.name;
    value["tensors"] = Json::UInt64(group.tensors);
    value["parameters"] = Json::UInt64(group.elements);
    for (const auto& [name, number] : values_of(group.optimizer)) value[name] = number;
    list.append(value);
  }
  return list;
}

}  // namespace sluice::plan
