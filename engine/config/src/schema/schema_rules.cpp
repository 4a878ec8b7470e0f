#include "schema/schema_rules.hpp"

#include <utility>

#include "json/json_document.hpp"
#include "schedule/scheduler_types.hpp"

namespace sluice::config {

using Json::Value;

Value text_schema(const char* text) {
  return *parse_json_value(text);
}

Value const_schema(const Value& value) {
  Value schema(Json::objectValue);
  schema["const"] = value;
  return schema;
}

Value any_of(const std::vector<Value>& options) {
  if (options.size() == 1) return options.front();
  Value schema(Json::objectValue);
  for (const Value& option : options) schema["anyOf"].append(option);
  return schema;
}

Value rule(const Value& condition, const Value& consequence) {
  Value schema(Json::objectValue);
  schema["if"] = condition;
  schema["then"] = consequence;
  return schema;
}

Value with_member(const std::string& name, const Value& member) {
  Value schema(Json::objectValue);
  schema["type"] = "object";
  schema["properties"][name] = member;
  schema["required"].append(name);
  return schema;
}

Value groups_schema() {
  return text_schema(R"({"type": "array", "items": {"type": "object", "required": ["match"],
      "minProperties": 2, "additionalProperties": false, "properties": {
        "match": {"anyOf": [{"type": "string", "minLength": 1},
                            {"type": "array", "minItems": 1,
                             "items": {"type": "string", "minLength": 1}}]},
        "lr": {"type": "number", "minimum": 0, "maximum": 1e10},
        "weight_decay": {"type": "number", "minimum": 0, "maximum": 1e10},
        "eps": {"type": "number", "minimum": 0, "maximum": 1e10},
        "momentum": {"type": "number", "minimum": 0, "maximum": 1e10},
        "betas": {"type": "array", "minItems": 2, "maxItems": 2,
                  "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}}}}})");
}

namespace {

// The section "scheduler" of one type: the names in "params", and those that have to be there.
Value parameters_of(const SchedulerType& type) {
  Value params(Json::objectValue);
  for (const std::string_view name : type.parameters)
    params["propertyNames"]["enum"].append(std::string(name));
  // These take their default only, and nothing reads them (see the table).
  for (const char* name : {"last_batch_iteration", "last_epoch"})
    params["propertyNames"]["enum"].append(name);
  for (const std::string_view name : type.required) params["required"].append(std::string(name));
  Value section(Json::objectValue);
  section["properties"]["params"] = params;
  if (!type.required.empty()) section["required"].append("params");
  return section;
}

}  // namespace

std::vector<Value> rules_between(const std::string& path) {
  std::vector<Value> rules;
  if (path.ends_with(".offload_param") || path.ends_with(".offload_optimizer"))
    rules.push_back(
        rule(with_member("device", const_schema("nvme")),
             with_member("nvme_path", text_schema(R"({"not": {"enum": [null, "", "auto"]}})"))));
  if (path == "zero_optimization") {
    const Value away = with_member("device", text_schema(R"({"enum": ["cpu", "nvme"]})"));
    const Value on = const_schema(true);
    const Value one_or_more =
        with_member("stage", text_schema(R"({"enum": [1, 2, 3, "1", "2", "3"]})"));
    rules.push_back(rule(with_member("offload_optimizer", away), one_or_more));
    rules.push_back(rule(with_member("cpu_offload", on), one_or_more));
  }
  if (path == "sluice")
    rules.push_back(
        rule(with_member("checkpoint_every", text_schema(R"({"exclusiveMinimum": 0})")),
             with_member("checkpoint_dir", text_schema(R"({"not": {"enum": [null, ""]}})"))));
  if (path == "scheduler") {
    rules.push_back(text_schema(R"({"required": ["type"]})"));
    for (const SchedulerType& type : scheduler_types())
      rules.push_back(
          rule(with_member("type", const_schema(std::string(type.name))), parameters_of(type)));
  }
  return rules;
}

std::vector<Value> rules_of_file() {
  std::vector<Value> rules;
  rules.push_back(text_schema(R"({"anyOf": [
      {"required": ["train_batch_size"],
       "properties": {"train_batch_size": {"not": {"const": null}}}},
      {"required": ["train_micro_batch_size_per_gpu"],
       "properties": {"train_micro_batch_size_per_gpu": {"not": {"const": null}}}}]})"));
  const Value on = with_member("enabled", const_schema(true));
  for (const char* name : {"bf16", "bfloat16"}) {
    Value pair = with_member("fp16", on);
    pair["properties"][name] = on;
    pair["required"].append(name);
    Value none(Json::objectValue);
    none["not"] = pair;
    rules.push_back(none);
  }
  return rules;
}

}  // namespace sluice::config
