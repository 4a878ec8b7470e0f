#include "check/checker.hpp"

#include <json/reader.h>

#include <algorithm>
#include <cctype>
#include <memory>

#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

std::string joined(const std::string& parent, std::string_view name) {
  return parent.empty() ? std::string(name) : parent + "." + std::string(name);
}

std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(path.substr(0, dot == std::string_view::npos ? 0 : dot));
}

std::string_view name_in(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

Json::Value parse_default(std::string_view text) {
  Json::CharReaderBuilder builder;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value value;
  reader->parse(text.data(), text.data() + text.size(), &value, nullptr);
  return value;
}

bool equal_ignoring_case(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

const Json::Value* find_member(const Json::Value& object, std::string_view name) {
  return object.find(name.data(), name.data() + name.size());
}

// {} and {"enabled": false, ...} are sections without an effect.
bool asks_for_nothing(const Json::Value& value) {
  if (!value.isObject()) return false;
  if (value.empty()) return true;
  const Json::Value* enabled = find_member(value, "enabled");
  return enabled != nullptr && enabled->isBool() && !enabled->asBool();
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
  if (info.default_json != "none") {
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
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const KeyInfo& info : schema_.keys) {
    rules_.emplace(info.path, Rule{&info, TypeRule(info.type)});
    const std::string parent = parent_of(info.path);
    add_child(parent, name_in(info.path));
    if (!info.alias.empty()) {
      add_child(parent, info.alias);
      aliases_.emplace(joined(parent, info.alias), info.path);
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
  for (auto member = object.begin(); member != object.end(); ++member) {
    check_member(*member, {path, written, member.name()}, section);
  }
}

std::string Checker::canonical_name(const std::string& parent, const std::string& name) const {
  const auto found = aliases_.find(joined(parent, name));
  return found == aliases_.end() ? name : std::string(name_in(found->second));
}

void Checker::check_member(const Json::Value& value, const Member& member, Section section) {
  Entry entry{&value, document_.position_of_key(value), joined(member.written_parent, member.name),
              false};
  // Compares with names of this section only: a name with dots never reaches into a subsection.
  const std::string name = canonical_name(member.parent, member.name);
  const std::vector<std::string_view>& siblings = children_.find(member.parent)->second;
  if (std::find(siblings.begin(), siblings.end(), name) == siblings.end()) {
    // Looking for the nearest name takes time, which a file of 100,000 unknown keys adds up.
    if (has_enough_problems()) return;
    return report(entry, unknown_message(member.parent, member.name));
  }
  const std::string path = joined(member.parent, name);
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
  } else if (value.isString() && value.asString() == "auto" && drops_auto(path)) {
    kept.value = nullptr;
    add_note(path, "\"auto\" means the default" +
                       (rule == nullptr ? "" : ", " + std::string(rule->info->default_json)));
  } else if (rule != nullptr) {
    check_value(*rule, value, kept, section);
  } else {
    kept.value = nullptr;  // null: as if the section were absent
    if (!value.isNull()) report(kept, "expected object, found " + document_.shown(value));
  }
}

void Checker::check_value(const Rule& rule, const Json::Value& value, Entry& entry,
                          Section section) {
  const KeyInfo& info = *rule.info;
  if (value.isNull() && (info.default_json == "null" || children_.contains(info.path))) {
    entry.value = nullptr;
    return;
  }
  if (!rule.type.accepts(value)) {
    std::string message =
        "expected " + std::string(info.type) + ", found " + document_.shown(value);
    if (value.isString() && value.asString() == "auto") {
      message +=
          "; \"auto\" is filled in by the Hugging Face Trainer, not by DeepSpeed: write the value";
    }
    return report(entry, message);
  }
  if (value.isString() && value.asString().find('\0') != std::string::npos) {
    return report(entry, "the string holds a zero character");
  }
  if (info.fate == Fate::mapped) {
    notes_.push_back("mapped: " + entry.written + ": " + std::string(info.note));
  }
  if (info.fate != Fate::refused || section == Section::disabled) return;
  if (!equals_default(value, info.default_json))
    report(entry, refusal(info, document_.shown(value)));
}

// In a section that is switched off, no value has an effect, supported or not.
bool Checker::is_disabled(const Json::Value& object, const std::string& path) const {
  for (const char* name : {"enabled", "deepcompile"}) {
    const Rule* rule = rule_of(joined(path, name));
    if (rule == nullptr) continue;
    const Json::Value* value = find_member(object, name);
    const bool given_bool = value != nullptr && value->isBool();
    return given_bool ? !value->asBool() : rule->info->default_json == "false";
  }
  return false;
}

bool Checker::drops_auto(std::string_view path) const {
  return std::any_of(schema_.auto_sections.begin(), schema_.auto_sections.end(),
                     [&](std::string_view section) {
                       return path.starts_with(section) &&
                              (path.size() == section.size() || path[section.size()] == '.');
                     });
}

std::string Checker::unknown_message(const std::string& parent, const std::string& name) const {
  const std::string path = joined(parent, name);
  for (const KeyHint& hint : schema_.hints) {
    if (hint.path == path) return std::string(hint.message);
  }
  // Key names are short. A long name has no near neighbour, and comparing it would be slow.
  if (name.size() <= 64) {
    const auto siblings = children_.find(parent);
    if (siblings != children_.end()) {
      const std::string near = nearest_name(name, siblings->second);
      if (!near.empty()) return "unknown key; did you mean \"" + near + "\"?";
    }
    for (const KeyInfo& info : schema_.keys) {
      if (name_in(info.path) != name) continue;
      const std::string section = parent_of(info.path);
      return "unknown key here; it belongs " +
             (section.empty() ? "at the top level" : "in \"" + section + "\"");
    }
  }
  return "unknown key";
}

void Checker::report(Entry& entry, const std::string& message) {
  entry.wrong = true;
  entry.value = nullptr;
  if (has_enough_problems()) return;
  const std::string shown_key = quoted(entry.written);
  problems_.push_back({entry.position.line, entry.position.column,
                       shown_key.substr(1, shown_key.size() - 2), message});
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
  for (std::string section = parent_of(path); !section.empty(); section = parent_of(section)) {
    const auto around = entries_.find(section);
    if (around == entries_.end()) continue;
    position = around->second.position;
    break;
  }
  problems_.push_back({position.line, position.column, std::string(path), message});
}

void Checker::add_note(std::string_view path, const std::string& message) {
  const auto found = entries_.find(path);
  const std::string shown = found == entries_.end() ? std::string(path) : found->second.written;
  notes_.push_back("note: " + shown + ": " + message);
}

void Checker::throw_if_wrong() const {
  if (!problems_.empty()) throw ConfigError(document_.shown_path(), problems_);
}

}  // namespace sluice::config
