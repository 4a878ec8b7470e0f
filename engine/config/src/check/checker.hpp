#pragma once
// Compares a JSON document with a key table: finds unknown keys, wrong types, ranges and
// unsupported values, and collects them. Afterwards the accepted values are read by key path.
//
// Key paths are the table's ("zero_optimization.stage3_prefetch_bucket_size"), even where the file
// uses an alias. Messages show the file's name of the key.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "check/problem_limit.hpp"
#include "check/type_rule.hpp"
#include "json/json_document.hpp"
#include "sluice/config/config_error.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config {

// The message for a frequent key that is not in the table.
struct KeyHint {
  std::string_view path;
  std::string_view message;
  // Only for readers that have the program's flags; others say it elsewhere, and the key is a note.
  bool of_flags = false;
};

struct Schema {
  std::span<const KeyInfo> keys;
  // Whether DeepSpeed's typed models read a section (is_typed_section); empty: none.
  bool (*is_typed)(std::string_view path) = nullptr;
  std::span<const KeyHint> hints = {};
  // Messages name the program's flags.
  bool has_flags = false;
  // An unknown key at the top level that resembles no known key is a note: DeepSpeed ignores it.
  bool ignores_unknown = false;
  // Sections whose unknown and unsupported keys are passed over, since the optimizer or scheduler
  // that they belong to is refused itself.
  std::vector<std::string_view> moot = {};
  // A section whose unknown keys are notes; or empty.
  std::string_view tolerated = {};
};

// The message for the name of an optimizer or scheduler that is none of `known`: "unknown optimizer
// "Adma"; did you mean "Adam"? (Adam, AdamW)".
std::string unknown_type(const std::string& kind, const std::string& type,
                         std::span<const std::string_view> known);

bool contains(const auto& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Thread-compatible: callers synchronise.
class Checker {
 public:
  // Checks everything at once and collects the problems for throw_if_wrong(). Both arguments must
  // outlive the checker.
  Checker(const JsonDocument& document, const Schema& schema);

  // The file has the key, with a good value or a bad one.
  bool given(std::string_view path) const;
  // The key has a problem, so checks that depend on its value do not apply.
  bool wrong(std::string_view path) const;
  // The accepted value; null when the key is absent or wrong, or its value is null or "auto".
  const Json::Value* find(std::string_view path) const;
  // The file has the key with the accepted value null, which means an absent key.
  bool is_null(std::string_view path) const {
    return given(path) && !wrong(path) && find(path) == nullptr;
  }
  // The flag that gave the value or made the section; empty: none.
  std::string flag_of(std::string_view path) const;
  // The file has a value of the key that is not its default.
  bool has_other_value(std::string_view path) const;
  // The file has "auto" for the key, for which a default stands.
  bool is_auto(std::string_view path) const;
  std::string shown(const Json::Value& value) const { return document_.shown(value); }
  // Where each accepted value came from, by key path: "ds.json:3:5", "--learning-rate", or "auto"
  // where a default stands for it.
  std::map<std::string, std::string, std::less<>> origins() const;

  // Replaces `out` by the accepted value, if there is one. Null empties an optional.
  void read(std::string_view path, bool& out) const;
  void read(std::string_view path, double& out) const;
  void read(std::string_view path, int& out) const;
  void read(std::string_view path, std::int64_t& out) const;
  void read(std::string_view path, std::uint64_t& out) const;
  void read(std::string_view path, std::string& out) const;
  template <typename T>
  void read(std::string_view path, std::optional<T>& out) const {
    if (find(path) != nullptr) read(path, out.emplace());
    if (is_null(path)) out.reset();
  }

  // Adds an "auto" that a flag must fill in; throw_if_wrong() names all of them in one problem.
  void add_open_auto(std::string_view path);
  // Drops all problems but those at the key: the file is another one than expected.
  void keep_problems_of(std::string_view path);
  // Adds a problem at the key, or at the nearest enclosing section in the file.
  void add_problem(std::string_view path, const std::string& message);
  // Adds a problem of `value`, which is inside the list at the key `path`. `name`: its place there,
  // such as "0.lr".
  void add_problem_in(std::string_view path, const Json::Value& value, const std::string& name,
                      const std::string& message);
  // A problem so far whose message has the text.
  bool has_problem_with(std::string_view text) const;
  void add_note(std::string_view path, const std::string& message);
  // A note on something that trains another model than the file asks for.
  void add_warning(std::string_view path, const std::string& message);
  // Messages may name the program's flags.
  bool has_flags() const { return schema_.has_flags; }
  // The text, for readers that have the program's flags; empty for others.
  std::string if_flags(const std::string& text) const { return schema_.has_flags ? text : ""; }
  // Unknown keys of the section are notes.
  bool tolerates(std::string_view section) const { return schema_.tolerated == section; }
  // Adds a note when the file has the key.
  void note_without_effect(std::string_view path, const std::string& unless) {
    if (find(path) != nullptr) add_note(path, "no effect unless " + unless);
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }
  // Throws ConfigError when there is any problem.
  void throw_if_wrong();

 private:
  struct Rule {
    const KeyInfo* info;
    TypeRule type;
  };
  struct Entry {
    const Json::Value* value = nullptr;  // null: unreadable
    Position position;
    std::string written;  // the path as the file has it
    std::string flag;     // that gave the value; empty: the file has it
    bool wrong = false;
    bool is_auto = false;
  };
  struct Member {
    const std::string& parent;  // canonical path of the section
    const std::string& written_parent;
    std::string name;
  };
  // disabled: switched off. moot: switched on by a key that is refused itself.
  enum class Section { active, disabled, moot };

  void build_rules();
  void check_object(const Json::Value& object, const std::string& path, const std::string& written,
                    Section section);
  void check_member(const Json::Value& value, const Member& member, Section section);
  void check_known(const Json::Value& value, const std::string& path, Entry& kept, Section section);
  void check_value(const Rule& rule, const Json::Value& value, Entry& entry, Section section);
  // The message about a value that the rule does not accept.
  std::string wrong_value(const Rule& rule, const Json::Value& given) const;
  // False when `value` is to be checked like any other.
  bool take_auto(const Rule* rule, const Json::Value& value, const std::string& path, Entry& entry);
  void take_unknown(const Json::Value& value, const Member& member, Entry& entry);
  bool is_moot(std::string_view path) const { return contains(schema_.moot, path); }
  bool has_range(std::string_view path, Section section) const;
  void add_line(const char* kind, std::string_view path, const std::string& message);
  std::string section_advice(const Json::Value& value, const std::string& path) const;
  bool is_disabled(const Json::Value& object, const std::string& path) const;
  bool has_refused_switch(const Json::Value& object, const std::string& path) const;
  bool is_typed(std::string_view path) const {
    return schema_.is_typed != nullptr && schema_.is_typed(path);
  }
  std::string canonical_name(const std::string& parent, const std::string& name) const;
  // Where an unknown key belongs, as the end of a message; empty when it resembles no known key.
  std::string hint_for(const std::string& parent, const std::string& name) const;
  std::string hint_by_word(const std::string& parent, const std::string& name) const;
  std::string hint_by_section(const std::string& parent, const std::string& name) const;
  const Rule* rule_of(std::string_view path) const;
  void report(Entry& entry, const std::string& message);
  bool has_enough_problems() const { return problems_.size() >= kMostProblems; }

  const JsonDocument& document_;
  const Schema& schema_;
  std::map<std::string, Rule, std::less<>> rules_;
  std::map<std::string, std::vector<std::string_view>, std::less<>> children_;  // names by section
  std::map<std::string, std::string, std::less<>> aliases_;  // path by alias -> path
  std::map<std::string, Entry, std::less<>> entries_;
  std::deque<Json::Value> filled_;  // values that stand for those of the file
  std::vector<std::string> open_autos_;
  std::size_t ignored_ = 0;  // unknown keys that became notes
  std::vector<Problem> problems_;
  std::vector<std::string> notes_;
};

}  // namespace sluice::config
