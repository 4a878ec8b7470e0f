// Unknown names. A key: a note, or an error that says where the key belongs.
#include <algorithm>

#include "check/checker.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

std::string parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return std::string(path.substr(0, dot == std::string_view::npos ? 0 : dot));
}

std::string_view name_in(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

bool is_word_of(std::string_view words, std::string_view name) {
  while (!words.empty()) {
    const std::size_t end = words.find(", ");
    if (words.substr(0, end) == name) return true;
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 2);
  }
  return false;
}

// Names of comments at the top level, in the files that people have.
bool is_comment(const std::string& name) {
  if (name.starts_with("_")) return true;
  for (const char* word : {"comment", "comments", "description", "name", "note", "notes"}) {
    if (name == word) return true;
  }
  return false;
}

}  // namespace

std::string unknown_type(const std::string& kind, const std::string& type,
                         std::span<const std::string_view> known) {
  const std::string near = nearest_name(type, known);
  std::string names;
  for (const std::string_view name : known)
    names += (names.empty() ? "" : ", ") + std::string(name);
  return "unknown " + kind + " " + quoted(type) +
         (near.empty() ? "" : "; did you mean \"" + near + "\"?") + " (" + names + ")";
}

void Checker::take_unknown(const Json::Value& value, const Member& member, Entry& entry) {
  if (is_moot(member.parent)) return;
  if (member.parent == schema_.tolerated && !schema_.tolerated.empty()) {
    notes_.push_back("note: " + entry.written + ": no effect, since the optimizer is replaced");
    return;
  }
  const bool may_be_ignored =
      schema_.ignores_unknown && member.parent.empty() && document_.flag_of(value).empty();
  // Looking for the nearest name takes time, which a file of 100,000 unknown keys adds up.
  if (has_enough_problems()) return;
  if (may_be_ignored && ignored_ == kMostProblems)
    return report(entry, "unknown key, after " + std::to_string(kMostProblems) + " others");
  if (may_be_ignored && is_comment(member.name)) {
    ++ignored_;
    notes_.push_back("note: " + on_one_line(entry.written) + ": a comment");
    return;
  }
  const std::string hint = hint_for(member.parent, member.name);
  if (!hint.empty() || !may_be_ignored) return report(entry, "unknown key" + hint);
  ++ignored_;
  notes_.push_back("note: " + on_one_line(entry.written) +
                   ": unknown key, which DeepSpeed ignores; it has no effect here either");
}

std::string Checker::hint_for(const std::string& parent, const std::string& name) const {
  const std::string path = parent.empty() ? name : parent + "." + name;
  for (const KeyHint& hint : schema_.hints) {
    if (hint.path == path) return "; " + std::string(hint.message);
  }
  // Key names are short. A long name has no near neighbour, and comparing it would be slow.
  if (name.size() > 64) return "";
  if (std::string by_word = hint_by_word(parent, name); !by_word.empty()) return by_word;
  if (const auto siblings = children_.find(parent); siblings != children_.end()) {
    const std::string near = nearest_name(name, siblings->second);
    if (!near.empty()) return "; did you mean \"" + near + "\"?";
  }
  return hint_by_section(parent, name);
}

// The key that other programs call so, first of this section.
std::string Checker::hint_by_word(const std::string& parent, const std::string& name) const {
  const KeyInfo* found = nullptr;
  for (const KeyInfo& info : schema_.keys) {
    if (!is_word_of(info.words, name)) continue;
    if (parent_of(info.path) == parent)
      return "; did you mean \"" + std::string(name_in(info.path)) + "\"?";
    if (found == nullptr) found = &info;
  }
  if (found == nullptr) return "";
  const std::string section = parent_of(found->path);
  return "; did you mean \"" + std::string(name_in(found->path)) + "\" " +
         (section.empty() ? "at the top level?" : "in \"" + section + "\"?");
}

// A key or a section of this name elsewhere.
std::string Checker::hint_by_section(const std::string& parent, const std::string& name) const {
  for (const auto& [section, names] : children_) {
    if (section == parent || std::find(names.begin(), names.end(), name) == names.end()) continue;
    const Rule* rule = rule_of(section.empty() ? name : section + "." + name);
    // A switch is no sign of its section, and a refused key is no advice.
    if (name == "enabled" || (rule != nullptr && rule->info->fate == Fate::refused)) continue;
    return " here; it belongs " + (section.empty() ? "at the top level" : "in \"" + section + "\"");
  }
  return "";
}

}  // namespace sluice::config
