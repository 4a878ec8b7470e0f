#include "check/checker.hpp"

#include <algorithm>

#include "json/key_path.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

Json::Value parse_default(std::string_view text) {
  return parse_json_value(text).value_or(Json::Value());
}

// Keys that switch their section on.
constexpr std::string_view kSwitches[] = {"enabled", "deepcompile"};

bool is_switch(std::string_view path) {
  return contains(kSwitches, name_in(path));
}

const Json::Value* find_member(const Json::Value& object, std::string_view name) {
  return object.find(name.data(), name.data() + name.size());
}

bool asks_for_nothing(const Json::Value& value);

// {"enabled": false}, or {"autotp_size": 1}, or, as compression has it, {"shared_parameters":
// {"enabled": false}}.
bool is_switched_off(const Json::Value& section) {
  const Json::Value* enabled = find_member(section, "enabled");
  if (enabled != nullptr) return enabled->isBool() && !enabled->asBool();
  const Json::Value* size = find_member(section, "autotp_size");
  if (size != nullptr) return size->isNumeric() && size->asDouble() <= 1;
  const Json::Value* shared = find_member(section, "shared_parameters");
  return shared != nullptr && shared->isObject() && is_switched_off(*shared);
}

// Sections without an effect: {}, sections that are switched off, and sections of only such ones.
bool asks_for_nothing(const Json::Value& value) {
  if (!value.isObject()) return false;
  if (is_switched_off(value)) return true;
  return std::all_of(value.begin(), value.end(),
                     [](const Json::Value& member) { return asks_for_nothing(member); });
}

bool equals_default(const Json::Value& value, std::string_view default_json) {
  if (default_json == "none" || default_json == "never") return false;
  const Json::Value wanted = parse_default(default_json);
  if (value.isObject()) return asks_for_nothing(value);
  if (value.isString() && wanted.isString()) {
    return equal_ignoring_case(value.asString(), wanted.asString());
  }
  if (value.isBool() || wanted.isBool()) return value == wanted;
  if (value.isNumeric() && wanted.isNumeric()) return value.asDouble() == wanted.asDouble();
  return value == wanted;
}

std::string refusal(const KeyInfo& info, const std::string& found) {
  if (info.default_json == "never") return std::string(info.note);
  std::string message = "not supported yet";
  if (info.default_json == "{}") {
    message += "; only a section that is empty or switched off is accepted";
  } else if (info.default_json != "none") {
    message += "; only " + std::string(info.default_json) + " is accepted, found " + found;
  }
  return info.note.empty() ? message : message + "; " + std::string(info.note);
}

}  // namespace

Checker::Checker(const JsonDocument& document, const Schema& schema)
    : document_(document), schema_(schema), problems_(document.repeated_keys()) {
  build_rules();
  check_object(document.root(), "", "", Section::active);
}

void Checker::build_rules() {
  const auto add_child = [&](const std::string& parent, std::string_view name) {
    auto& names = children_[parent];
    if (!contains(names, name)) names.push_back(name);
  };
  for (const KeyInfo& info : schema_.keys) {
    rules_.emplace(info.path, Rule{&info, TypeRule(info.type)});
    const std::string parent = parent_of(info.path);
    add_child(parent, name_in(info.path));
    if (!info.alias.empty()) {
      add_child(parent, info.alias);
      aliases_.emplace(path_of(parent, info.alias), info.path);
    }
    // A section may have no row of its own; its keys show that it exists.
    for (std::string_view section = info.path; section.rfind('.') != std::string_view::npos;) {
      section = section.substr(0, section.rfind('.'));
      add_child(parent_of(section), name_in(section));
    }
  }
}

const Checker::Rule* Checker::rule_of(std::string_view path) const {
  const auto found = rules_.find(path);
  return found == rules_.end() ? nullptr : &found->second;
}

void Checker::check_object(const Json::Value& object, const std::string& path,
                           const std::string& written, Section section) {
  if (is_disabled(object, path)) section = Section::disabled;
  if (has_refused_switch(object, path)) section = Section::moot;
  for (auto member = object.begin(); member != object.end(); ++member) {
    check_member(*member, {path, written, member.name()}, section);
  }
}

std::string Checker::canonical_name(const std::string& parent, const std::string& name) const {
  const auto found = aliases_.find(path_of(parent, name));
  return found == aliases_.end() ? name : std::string(name_in(found->second));
}

void Checker::check_member(const Json::Value& value, const Member& member, Section section) {
  Entry entry{&value,
              document_.position_of_key(value),
              path_of(member.written_parent, member.name),
              document_.flag_of(value),
              false,
              false};
  // Compares with names of this section only: a name with dots never reaches into a subsection.
  const std::string name = canonical_name(member.parent, member.name);
  const std::vector<std::string_view>& siblings = children_.find(member.parent)->second;
  if (!contains(siblings, name)) return take_unknown(value, member, entry);
  const std::string path = path_of(member.parent, name);
  const auto [kept, is_new] = entries_.try_emplace(path, entry);
  if (!is_new) {
    return report(entry, "the same key as " + kept->second.written + "; remove one of the two");
  }
  check_known(value, path, kept->second, section);
}

void Checker::check_known(const Json::Value& value, const std::string& path, Entry& kept,
                          Section section) {
  const Rule* rule = rule_of(path);
  if (value.isObject() && children_.contains(path)) {
    check_object(value, path, kept.written, section);
  } else if (take_auto(rule, value, path, kept)) {
    kept.is_auto = true;
  } else if (rule != nullptr) {
    check_value(*rule, value, kept, section);
  } else {
    kept.value = nullptr;  // null: as if the section were absent
    if (!value.isNull())
      report(kept,
             "expected object, found " + document_.shown(value) + section_advice(value, path));
  }
}

bool Checker::take_auto(const Rule* rule, const Json::Value& value, const std::string& path,
                        Entry& entry) {
  if (!value.isString() || value.asString() != "auto") return false;
  const std::string_view fill = rule == nullptr ? "" : rule->info->auto_json;
  if (fill.empty() && !is_typed(path)) return false;
  entry.value = nullptr;
  if (fill == "open") {
    add_open_auto(path);
    return true;
  }
  if (fill == "null") return true;  // another key's value, which the reader of this key names
  std::string meaning = "the default";
  if (!fill.empty() && fill != "default") {
    meaning = fill;
    entry.value = &filled_.emplace_back(parse_default(fill));
  } else if (rule != nullptr && rule->info->default_json != "null") {
    meaning += ", " + std::string(rule->info->default_json);
  } else if (fill == "default" && rule != nullptr) {
    return true;  // an absent key: what is derived is shown elsewhere
  }
  const std::string flags = rule == nullptr ? "" : if_flags(flags_of(path));
  notes_.push_back("note: " + entry.written + ": \"auto\" means " + meaning +
                   (flags.empty() || flags.starts_with("--set") ? "" : " (or give " + flags + ")"));
  return true;
}

// The range of a number counts where the number has an effect.
bool Checker::has_range(std::string_view path, Section section) const {
  if (section == Section::disabled) return false;
  // A static loss scale leaves the keys of a dynamic one without effect. The scale may come later
  // in the section than the key.
  if (!path.starts_with("fp16.") || path == "fp16.loss_scale") return true;
  const Json::Value* fp16 = find_member(document_.root(), "fp16");
  const Json::Value* scale =
      fp16 != nullptr && fp16->isObject() ? find_member(*fp16, "loss_scale") : nullptr;
  if (scale == nullptr) return true;
  const Json::Value value =
      scale->isString() ? rule_of("fp16.loss_scale")->type.number_in(scale->asString()) : *scale;
  return !value.isNumeric() || value.asDouble() == 0;
}

std::string Checker::wrong_value(const Rule& rule, const Json::Value& given) const {
  const KeyInfo& info = *rule.info;
  std::string message = "expected " + std::string(info.type) + ", found " + document_.shown(given);
  message += section_advice(given, std::string(info.path));
  if (given.isString() && given.asString() != "auto")
    message += did_you_mean(nearest_name(given.asString(), rule.type.choices()));
  if (given.isString() && rule.type.accepts(rule.type.number_in(given.asString())))
    message += "; write it without quotes";
  if (given.isString() && given.asString() == "auto")
    message += "; the Hugging Face Trainer fills in no \"auto\" here: write the value";
  if (rule.type.takes_integer() && given.isNumeric() && given.asDouble() >= 0x1p63)
    message += "; integers are below 2^63";
  if (info.path == "fp16.loss_scale" && given == Json::Value("dynamic"))
    message += "; 0 is dynamic";
  if (given.isArray() && !given.empty() && !info.path.starts_with("sluice.") &&
      info.type.find("list") == std::string_view::npos)
    message += info.path.starts_with("scheduler.params.warmup_m")
                   ? "; write one rate, which is that of all parameter groups"
                   : "; a list is a search space of DeepSpeed's autotuner: write one value";
  return message;
}

void Checker::check_value(const Rule& rule, const Json::Value& given, Entry& entry,
                          Section section) {
  const KeyInfo& info = *rule.info;
  if (given.isNull() && (info.default_json == "null" || children_.contains(info.path))) {
    entry.value = nullptr;
    return;
  }
  const Json::Value* value = &given;
  if (given.isString() && is_typed(info.path) && !rule.type.accepts_kind(given)) {
    const Json::Value number = rule.type.number_in(given.asString());
    if (!number.isNull()) entry.value = value = &filled_.emplace_back(number);
  }
  const bool accepted =
      has_range(info.path, section) ? rule.type.accepts(*value) : rule.type.accepts_kind(*value);
  if (!accepted) return report(entry, wrong_value(rule, given));
  if (value->isString() && value->asString().find('\0') != std::string::npos) {
    return report(entry, "the string holds a zero character");
  }
  if (equals_default(*value, info.default_json)) return;
  if (info.fate == Fate::mapped && (section != Section::disabled || is_switch(info.path))) {
    notes_.push_back((info.warns ? "warning: " : "mapped: ") + entry.written + ": " +
                     std::string(info.note));
  }
  const bool counts =
      section == Section::active || (section == Section::moot && is_switch(info.path));
  if (info.fate == Fate::refused && counts && !is_moot(parent_of(info.path)))
    report(entry, refusal(info, document_.shown(given)));
}

// A refused switch that is on says enough; the section's other keys belong to it.
bool Checker::has_refused_switch(const Json::Value& object, const std::string& path) const {
  return std::any_of(std::begin(kSwitches), std::end(kSwitches), [&](std::string_view name) {
    const Rule* rule = rule_of(path_of(path, name));
    const Json::Value* value = find_member(object, name);
    return rule != nullptr && rule->info->fate == Fate::refused && value != nullptr &&
           value->isBool() && value->asBool();
  });
}

// In a section that is switched off, no value has an effect, supported or not. A section with two
// switches is off when both are.
bool Checker::is_disabled(const Json::Value& object, const std::string& path) const {
  bool has_switch = false;
  for (const std::string_view name : kSwitches) {
    const Rule* rule = rule_of(path_of(path, name));
    if (rule == nullptr) continue;
    has_switch = true;
    const Json::Value* value = find_member(object, name);
    const bool is_given = value != nullptr && value->isBool();
    if (is_given ? value->asBool() : rule->info->default_json != "false") return false;
  }
  return has_switch;
}

void Checker::report(Entry& entry, const std::string& message) {
  entry.wrong = true;
  entry.value = nullptr;
  if (has_enough_problems()) return;
  problems_.push_back({entry.position.line, entry.position.column, on_one_line(entry.written),
                       message, entry.flag});
}

void Checker::add_open_auto(std::string_view path) {
  open_autos_.emplace_back(path);
}

void Checker::keep_problems_of(std::string_view path) {
  std::erase_if(problems_, [&](const Problem& problem) { return problem.key_path != path; });
}

std::string Checker::flag_of(std::string_view path) const {
  const auto found = entries_.find(path);
  return found == entries_.end() ? "" : found->second.flag;
}

bool Checker::has_other_value(std::string_view path) const {
  const Json::Value* value = find(path);
  return value != nullptr && !equals_default(*value, rule_of(path)->info->default_json);
}

bool Checker::is_auto(std::string_view path) const {
  const auto found = entries_.find(path);
  return found != entries_.end() && found->second.is_auto;
}

std::map<std::string, std::string, std::less<>> Checker::origins() const {
  std::map<std::string, std::string, std::less<>> origins;
  for (const auto& [path, entry] : entries_) {
    if (entry.is_auto) {
      origins[path] = "auto";
      continue;
    }
    if (entry.value == nullptr || entry.value->isObject()) continue;
    origins[path] = entry.flag.empty()
                        ? document_.shown_path() + ":" + std::to_string(entry.position.line) + ":" +
                              std::to_string(entry.position.column)
                        : entry.flag;
  }
  return origins;
}

bool Checker::given(std::string_view path) const {
  return entries_.contains(path);
}

bool Checker::wrong(std::string_view path) const {
  const auto found = entries_.find(path);
  return found != entries_.end() && found->second.wrong;
}

const Json::Value* Checker::find(std::string_view path) const {
  const auto found = entries_.find(path);
  return found == entries_.end() ? nullptr : found->second.value;
}

void Checker::read(std::string_view path, bool& out) const {
  if (const Json::Value* value = find(path)) out = value->asBool();
}
void Checker::read(std::string_view path, double& out) const {
  if (const Json::Value* value = find(path)) out = value->asDouble();
}
void Checker::read(std::string_view path, int& out) const {
  if (const Json::Value* value = find(path)) out = value->asInt();
}
void Checker::read(std::string_view path, std::int64_t& out) const {
  if (const Json::Value* value = find(path)) out = value->asInt64();
}
void Checker::read(std::string_view path, std::uint64_t& out) const {
  if (const Json::Value* value = find(path)) out = value->asUInt64();
}
void Checker::read(std::string_view path, std::string& out) const {
  if (const Json::Value* value = find(path)) out = value->asString();
}

void Checker::add_problem(std::string_view path, const std::string& message) {
  const auto found = entries_.find(path);
  if (found != entries_.end()) return report(found->second, message);
  if (has_enough_problems()) return;
  Position position = document_.position_of(document_.root());
  std::string flag;
  for (std::string section = parent_of(path); !section.empty(); section = parent_of(section)) {
    const auto around = entries_.find(section);
    if (around == entries_.end()) continue;
    position = around->second.position;
    flag = around->second.flag;
    break;
  }
  problems_.push_back({position.line, position.column, std::string(path), message, flag});
}

}  // namespace sluice::config
