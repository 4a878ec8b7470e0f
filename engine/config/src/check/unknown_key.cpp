// Unknown names. A key: a note, or an error that says where the key belongs.
#include <algorithm>

#include "check/checker.hpp"
#include "json/key_path.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

bool is_word_of(std::string_view words, std::string_view name) {
  while (!words.empty()) {
    const std::size_t end = words.find(", ");
    if (words.substr(0, end) == name) return true;
    words.remove_prefix(end == std::string_view::npos ? words.size() : end + 2);
  }
  return false;
}

// Names that differ in a whole word are no neighbours: sequence_parallel is not expert_parallel,
// and pipe-parallel-size is not data_parallel_size.
bool differ_in_letters_only(std::string name, std::string_view b) {
  std::replace(name.begin(), name.end(), '-', '_');
  std::string_view a = name;
  const auto first = [](std::string_view text) { return text.substr(0, text.find('_')); };
  const auto last = [](std::string_view text) { return text.substr(text.rfind('_') + 1); };
  while (!a.empty() && !b.empty() && first(a) == first(b)) {
    const std::size_t word = first(a).size();
    a.remove_prefix(std::min(a.size(), word + 1));
    b.remove_prefix(std::min(b.size(), word + 1));
  }
  while (!a.empty() && !b.empty() && last(a) == last(b)) {
    const std::size_t word = last(a).size();
    a.remove_suffix(std::min(a.size(), word + 1));
    b.remove_suffix(std::min(b.size(), word + 1));
  }
  const std::string_view only[] = {b};
  return a.empty() || b.empty() || !nearest_name(a, only).empty();
}

// Names of comments at the top level, in the files that people have.
bool is_comment(const std::string& name) {
  if (name.starts_with("_")) return true;
  for (const char* word : {"comment", "comments", "description", "name", "note", "notes"}) {
    if (name == word) return true;
  }
  return false;
}

// TRL and scripts beside it write these names for a reference model. DeepSpeed does not read them.
bool is_written_by_trl(std::string_view name) {
  return name == "zero_optimization.reduce_bucket_size" ||
         name == "zero_optimization.stage3_param_persistence_threshold" ||
         name == "zero_optimization.stage3_prefetch_bucket_size";
}

// Names at the top level that DeepSpeed does not read, and that are near to a key by chance.
bool is_near_by_chance(std::string_view name) {
  return name == "comm" || name == "monitor" || name == "sequence_parallel";
}

}  // namespace

std::string unknown_type(const std::string& kind, const std::string& type,
                         std::span<const std::string_view> known) {
  return "unknown " + kind + " " + quoted(type) + did_you_mean(nearest_name(type, known)) + " (" +
         join(known, ", ") + ")";
}

void Checker::take_unknown(const Json::Value& value, const Member& member, Entry& entry) {
  if (is_moot(member.parent)) return;
  const bool tolerated = !schema_.tolerated.empty() && member.parent == schema_.tolerated;
  const bool may_be_ignored = tolerated || (schema_.ignores_unknown && member.parent.empty() &&
                                            document_.flag_of(value).empty());
  // Looking for the nearest name takes time, which a file of 100,000 unknown keys adds up.
  if (has_enough_problems()) return;
  if (may_be_ignored && ignored_ == kMostProblems)
    return report(entry, "unknown key, after " + std::to_string(kMostProblems) + " others");
  if (may_be_ignored && !tolerated && is_comment(member.name)) {
    ++ignored_;
    notes_.push_back("note: " + on_one_line(entry.written) + ": a comment");
    return;
  }
  const bool is_meant =
      may_be_ignored && (is_written_by_trl(member.name) || is_near_by_chance(member.name));
  const std::string hint = is_meant ? "" : hint_for(member.parent, member.name);
  if (!hint.empty() || !may_be_ignored) return report(entry, "unknown key" + hint);
  ++ignored_;
  notes_.push_back("note: " + on_one_line(entry.written) +
                   (tolerated
                        ? ": no effect, since the optimizer is replaced"
                        : ": unknown key, which DeepSpeed ignores; it has no effect here either"));
}

std::string Checker::hint_for(const std::string& parent, const std::string& name) const {
  const std::string path = path_of(parent, name);
  for (const KeyHint& hint : schema_.hints) {
    if (hint.path != path) continue;
    return hint.of_flags && !has_flags() ? "" : "; " + std::string(hint.message);
  }
  // Key names are short. A long name has no near neighbour, and comparing it would be slow.
  if (name.size() > 64) return "";
  if (std::string by_word = hint_by_word(parent, name); !by_word.empty()) return by_word;
  if (parent.empty() && name.find('.') != std::string::npos && rule_of(name) != nullptr)
    return "; write it nested: " + quoted(parent_of(name)) + ": {" +
           quoted(std::string(name_in(name))) + ": ...}";
  if (parent.empty()) {
    if (std::string elsewhere = hint_by_section(parent, name); !elsewhere.empty()) return elsewhere;
  }
  // Names of two letters have no typing mistakes that could be told from other words: lr and l1.
  if (const auto siblings = children_.find(parent);
      siblings != children_.end() && name.size() > 2) {
    const std::string near = nearest_name(name, siblings->second);
    if (!near.empty() && differ_in_letters_only(name, near)) return did_you_mean(near);
    // The first words of a key. At the top level people have words of their own.
    const std::string_view longer = name_of_first_words(name, siblings->second);
    if (!parent.empty() && !longer.empty()) return did_you_mean(longer);
  }
  return hint_by_section(parent, name);
}

// The key that other programs call so, first of this section.
std::string Checker::hint_by_word(const std::string& parent, const std::string& name) const {
  const KeyInfo* found = nullptr;
  for (const KeyInfo& info : schema_.keys) {
    if (!is_word_of(info.words, name)) continue;
    if (parent_of(info.path) == parent) return did_you_mean(name_in(info.path));
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
    if (section == parent || !contains(names, name)) continue;
    const Rule* rule = rule_of(path_of(section, name));
    // A switch is no sign of its section, nor is a type in a section; a refused key is no advice.
    const bool is_general = name == "enabled" || (name == "type" && !parent.empty());
    if (is_general || (rule != nullptr && rule->info->fate == Fate::refused)) continue;
    return " here; it belongs " + (section.empty() ? "at the top level" : "in \"" + section + "\"");
  }
  return "";
}

}  // namespace sluice::config
