#include "sluice/config/json_schema.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "check/type_rule.hpp"
#include "json/json_document.hpp"
#include "json/key_path.hpp"
#include "schedule/scheduler_types.hpp"
#include "schema/schema_rules.hpp"
#include "sluice/base/json/json_writer.hpp"
#include "sluice/config/key_table.hpp"
#include "train/optimizer_types.hpp"

namespace sluice::config {

namespace {

using Json::Value;

// Whether a value that is in range and supported is asked for, or only one of the right type: in a
// section that is switched off no value has an effect.
enum class Check { strict, type_only };

// "none" as a pattern without case: "[nN][oO][nN][eE]".
std::string any_case(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    pattern += is_letter ? std::string("[") + static_cast<char>(std::tolower(c)) +
                               static_cast<char>(std::toupper(c)) + "]"
                         : std::string(1, c);
  }
  return pattern;
}

class Schema {
 public:
  Schema() {
    for (const KeyInfo& info : key_table()) {
      rows_.emplace(info.path, &info);
      for (std::string path(info.path); !path.empty(); path = parent_of(path)) {
        std::vector<std::string>& names = children_[parent_of(path)];
        const std::string name(name_in(path));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }

  Value document() const {
    Value schema = section("", Check::strict);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
    schema["title"] = "Training configuration of Sluice: DeepSpeed's schema and the section sluice";
    // Anything without effect: {}, {"enabled": false}, and objects of nothing else.
    schema["$defs"]["off"] = text_schema(R"({"type": "object", "anyOf": [
        {"properties": {"enabled": {"const": false}}, "required": ["enabled"]},
        {"not": {"required": ["enabled"]}, "required": ["autotp_size"],
         "properties": {"autotp_size": {"type": "number", "maximum": 1}}},
        {"not": {"anyOf": [{"required": ["enabled"]}, {"required": ["autotp_size"]}]},
         "required": ["shared_parameters"],
         "properties": {"shared_parameters": {"$ref": "#/$defs/off"}}},
        {"not": {"anyOf": [{"required": ["enabled"]}, {"required": ["autotp_size"]}]},
         "additionalProperties": {"$ref": "#/$defs/off"}}]})");
    schema["required"] = Value(Json::nullValue);
    schema.removeMember("required");
    for (const Value& more : rules_of_file()) schema["allOf"].append(more);
    add_optimizer_rules(schema);
    return schema;
  }

 private:
  const KeyInfo* row(const std::string& path) const {
    const auto found = rows_.find(path);
    return found == rows_.end() ? nullptr : found->second;
  }
  bool has_key(const std::string& path) const { return row(path) != nullptr; }

  // The value of one key, or a section.
  Value member(const std::string& path, Check check) const {
    const KeyInfo* info = row(path);
    if (!children_.contains(path)) return leaf(*info, check);
    std::vector<Value> options = {section(path, check)};
    options.push_back(text_schema(R"({"type": "null"})"));
    if (info != nullptr) {
      const TypeRule type(info->type);
      if (type.takes_bool()) options.push_back(text_schema(R"({"type": "boolean"})"));
      for (const std::string_view choice : type.choices())
        options.push_back(const_schema(std::string(choice)));
    }
    if (is_typed_section(path)) options.push_back(const_schema("auto"));
    return any_of(options);
  }

  Value section(const std::string& path, Check check) const {
    Value schema(Json::objectValue);
    schema["type"] = "object";
    const bool has_switch =
        has_key(path_of(path, "enabled")) || has_key(path_of(path, "deepcompile"));
    schema["properties"] = properties(path, has_switch && !path.empty() ? Check::type_only : check);
    // DeepSpeed ignores unknown keys at the top level.
    if (!path.empty()) schema["additionalProperties"] = false;
    if (has_switch && !path.empty()) schema["allOf"].append(switch_rule(path));
    if (path == "fp16") schema["allOf"].append(dynamic_scale_rule());
    for (const Value& more : rules_between(path)) schema["allOf"].append(more);
    return schema;
  }

  Value properties(const std::string& path, Check check) const {
    Value all(Json::objectValue);
    for (const std::string& name : children_.at(path)) {
      const std::string full = path_of(path, name);
      const Value schema = member(full, check);
      all[name] = schema;
      const KeyInfo* info = row(full);
      if (info != nullptr && !info->alias.empty()) all[std::string(info->alias)] = schema;
    }
    return all;
  }

  // Where a switch of the section is on, all its values count.
  Value switch_rule(const std::string& path) const {
    std::vector<Value> on;
    for (const char* name : {"enabled", "deepcompile"}) {
      const KeyInfo* info = row(path_of(path, name));
      if (info == nullptr) continue;
      on.push_back(with_member(name, const_schema(true)));
      if (info->default_json == "true") {
        Value absent(Json::objectValue);
        absent["not"]["required"].append(name);
        on.push_back(absent);
      }
    }
    Value strict(Json::objectValue);
    strict["properties"] = properties(path, Check::strict);
    if (path == "fp16") {  // dynamic_scale_rule() has the ranges of the others
      const Value scale = strict["properties"]["loss_scale"];
      const Value types = properties(path, Check::type_only);
      for (const std::string& name : types.getMemberNames()) {
        if (row(path_of(path, name))->fate != Fate::refused)
          strict["properties"][name] = types[name];
      }
      strict["properties"]["loss_scale"] = scale;
    }
    return rule(any_of(on), strict);
  }

  // A static loss scale leaves the keys of a dynamic one without effect.
  Value dynamic_scale_rule() const {
    Value condition = with_member("enabled", const_schema(true));
    condition["not"] =
        with_member("loss_scale", text_schema(R"({"anyOf": [{"type": "number", "not": {"const": 0}},
                                  {"type": "string", "pattern": "[1-9]"}]})"));
    Value strict(Json::objectValue);
    strict["properties"] = properties("fp16", Check::strict);
    return rule(condition, strict);
  }

  Value leaf(const KeyInfo& info, Check check) const {
    const std::string path(info.path);
    std::vector<Value> options = of_type(info, check);
    if (info.default_json == "null") options.push_back(text_schema(R"({"type": "null"})"));
    if (!info.auto_json.empty() || is_typed_section(path)) options.push_back(const_schema("auto"));
    Value schema(Json::objectValue);
    if (info.fate == Fate::refused && check == Check::strict) {
      schema = refused(info);
      // "auto" stands for the default here.
      if (is_typed_section(path)) schema = any_of({schema, const_schema("auto")});
    } else {
      schema = any_of(options);
    }
    if (!info.note.empty() && schema.isObject()) schema["description"] = std::string(info.note);
    return schema;
  }

  // A refused key has its default, or asks for nothing.
  Value refused(const KeyInfo& info) const {
    if (info.default_json == "none" || info.default_json == "never") return Value(false);
    const Value standard = *parse_json_value(info.default_json);
    std::vector<Value> options;
    if (standard.isString()) {
      Value schema(Json::objectValue);
      schema["type"] = "string";
      schema["pattern"] = "^" + any_case(standard.asString()) + "$";
      options.push_back(schema);
    } else if (standard.isObject()) {
      options.push_back(text_schema(R"({"$ref": "#/$defs/off"})"));
    } else {
      options.push_back(const_schema(standard));
    }
    if (standard.isNull() && TypeRule(info.type).takes_object())
      options.push_back(text_schema(R"({"$ref": "#/$defs/off"})"));
    if (standard.isNumeric() && is_typed_section(std::string(info.path)))
      options.push_back(const_schema(std::string(info.default_json)));
    return any_of(options);
  }

  std::vector<Value> of_type(const KeyInfo& info, Check check) const {
    const TypeRule type(info.type);
    std::vector<Value> options;
    const auto add = [&](const char* text) { options.push_back(text_schema(text)); };
    if (type.takes_bool()) add(R"({"type": "boolean"})");
    if (type.takes_list()) options.push_back(list_of(info));
    if (type.takes_object()) add(R"({"type": "object"})");
    if (type.takes_string()) options.push_back(string_of(info));
    if (type.takes_bytes() && info.path == "sluice.drive_endurance")
      add(R"({"type": "string",
              "pattern": "^[0-9]+(\\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB])?|[bB])?$"})");
    else if (type.takes_bytes())
      add(R"({"type": "string", "pattern":
              "^(auto|([1-9][0-9]?|100)%|[0-9]+(\\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB])?|[bB])?)$"})");
    for (const std::string_view choice : type.choices())
      options.push_back(const_schema(std::string(choice)));
    if (!type.takes_integer() && !type.takes_number() && !type.takes_bytes()) return options;
    options.push_back(number_of(info, type, check));
    if (is_typed_section(std::string(info.path)) && !type.takes_bytes()) {
      options.push_back(number_in_string(type, check));
    }
    return options;
  }

  // A number in a string; beyond its sign and small ranges a pattern has no range.
  static Value number_in_string(const TypeRule& type, Check check) {
    const auto [lower, upper] = type.range();
    const bool is_ranged = check == Check::strict;
    Value schema(Json::objectValue);
    schema["type"] = "string";
    std::string pattern = is_ranged && lower >= 0 ? "^" : "^-?";
    if (type.takes_number()) {
      pattern += is_ranged && upper == 1 ? "(0?\\.[0-9]+|0|1|1\\.0+)$"
                                         : "[0-9]*\\.?[0-9]+([eE][+-]?[0-9]+)?$";
    } else {
      pattern += is_ranged && upper < 10 ? "[" + std::to_string(static_cast<int>(lower)) + "-" +
                                               std::to_string(static_cast<int>(upper)) + "]$"
                                         : "[0-9]{1,18}$";
    }
    schema["pattern"] = pattern;
    return schema;
  }

  // Host memory that a run can do without.
  static bool is_spare(const KeyInfo& info) {
    return info.path == "sluice.cache_bytes" || info.path == "sluice.speculative_bytes" ||
           info.path == "sluice.checkpoint_bytes";
  }

  static Value number_of(const KeyInfo& info, const TypeRule& type, Check check) {
    Value schema(Json::objectValue);
    schema["type"] = type.takes_number() ? "number" : "integer";
    const auto [lower, upper] = type.range();
    const auto [lower_open, upper_open] = type.open_ends();
    if (check == Check::strict) {
      if (std::isfinite(lower)) schema[lower_open ? "exclusiveMinimum" : "minimum"] = lower;
      if (std::isfinite(upper)) schema[upper_open ? "exclusiveMaximum" : "maximum"] = upper;
    }
    if (type.takes_bytes()) schema["minimum"] = is_spare(info) ? 0 : 1;
    // Integers have 64 bits. 2^63 itself is beyond, and is the nearest double.
    if (!type.takes_number() && !schema.isMember("maximum")) schema["exclusiveMaximum"] = 0x1p63;
    if (info.path == "aio.block_size") schema["multipleOf"] = 4096;
    return schema;
  }

  static Value list_of(const KeyInfo& info) {
    if (info.path == "optimizer.params.betas")
      return text_schema(R"({"type": "array", "minItems": 2, "maxItems": 2,
          "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}})");
    if (info.path == "sluice.groups") return groups_schema();
    if (info.path == "sluice.io.drive_weights")
      return text_schema(R"({"type": "array", "minItems": 1,
          "items": {"type": "integer", "minimum": 1, "maximum": 64}})");
    if (info.path == "scheduler.params.milestones")
      return text_schema(R"({"type": "array",
          "items": {"type": "integer", "minimum": 0, "maximum": 1e15}})");
    if (info.path.starts_with("scheduler.params."))
      return text_schema(R"({"type": "array", "minItems": 1, "maxItems": 1,
          "items": {"type": "number", "minimum": 0, "maximum": 1e10}})");
    if (info.path.ends_with("nvme_path"))
      return text_schema(R"({"type": "array", "minItems": 1,
          "items": {"type": "string", "minLength": 1}})");
    return text_schema(R"({"type": "array"})");
  }

  static Value string_of(const KeyInfo& info) {
    if (info.path == "sluice.device")
      return text_schema(R"({"type": "string", "pattern": "^(auto|host|cuda(:[0-9]{1,4})?)$"})");
    if (info.path == "scheduler.type") {
      Value schema(Json::objectValue);
      for (const SchedulerType& type : scheduler_types())
        schema["enum"].append(std::string(type.name));
      return schema;
    }
    return text_schema(R"({"type": "string"})");
  }

  // With "approximate" a file of some other optimizers is taken, with parameters of its own.
  void add_optimizer_rules(Value& schema) const {
    const Value approximate = with_member("sluice", with_member("approximate", const_schema(true)));
    const Value strict = schema["properties"]["optimizer"];
    std::string names;
    for (const OptimizerKind& kind : optimizer_kinds())
      names += (names.empty() ? "" : "|") + any_case(std::string(kind.name));
    Value named = strict;
    Value& object = named["anyOf"][0];
    object["required"].append("type");
    object["properties"]["type"]["type"] = "string";
    object["properties"]["type"]["pattern"] = "^(" + names + ")$";
    for (const OptimizerKind& kind : optimizer_kinds()) object["allOf"].append(own_params(kind));
    object["allOf"].append(text_schema(R"({"properties": {"params": {
        "if": {"required": ["nesterov"], "properties": {"nesterov": {"const": true}}},
        "then": {"required": ["momentum"], "properties": {"momentum": {"exclusiveMinimum": 0},
                                                          "dampening": {"const": 0}}}}}})"));
    // AdamW decouples the weight decay.
    object["allOf"].append(rule(
        with_member("type", text_schema(R"({"pattern": "[wW]$"})")),
        text_schema(
            R"({"properties": {"params": {"properties": {"adam_w_mode": {"const": true}}}}})")));
    Value loose = strict;
    Value& other = loose["anyOf"][0];
    other["required"].append("type");
    other["properties"]["type"]["type"] = "string";
    other["properties"]["type"]["pattern"] = "^(" + any_case("lamb") + "|" +
                                             any_case("onebitlamb") + "|" + any_case("onebitadam") +
                                             "|" + any_case("zerooneadam") + ")$";
    other["properties"]["params"]["anyOf"][0].removeMember("additionalProperties");
    Value choice(Json::objectValue);
    choice["if"] = approximate;
    choice["then"]["properties"]["optimizer"] = any_of({named, loose});
    choice["else"]["properties"]["optimizer"] = named;
    schema["properties"]["optimizer"] = Value(true);
    schema["allOf"].append(choice);
  }

  // An optimizer has its own parameters only.
  static Value own_params(const OptimizerKind& kind) {
    Value type(Json::objectValue);
    type["pattern"] = "^" + any_case(std::string(kind.name)) + "$";
    Value own(Json::objectValue);
    Value& names = own["properties"]["params"]["propertyNames"]["enum"];
    for (const std::string_view name : kind.params) names.append(std::string(name));
    return rule(with_member("type", type), own);
  }

  std::map<std::string, const KeyInfo*> rows_;
  std::map<std::string, std::vector<std::string>> children_;
};

}  // namespace

std::string json_schema() {
  return json_line(Schema().document());
}

}  // namespace sluice::config
