#pragma once
// Compares a JSON document with a key table: finds unknown keys, wrong types, ranges and
// unsupported values, and collects them. Afterwards the accepted values are read by key path.
//
// Key paths are the table's ("zero_optimization.stage3_prefetch_bucket_size"), even where the file
// uses an alias. Messages show the file's name of the key.

#include <cstdint>
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
};

struct Schema {
  std::span<const KeyInfo> keys;
  // In these sections "auto" stands for the default of any key (DeepSpeed drops it there).
  std::span<const std::string_view> auto_sections;
  std::span<const KeyHint> hints;
};

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
  std::string shown(const Json::Value& value) const { return document_.shown(value); }

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

  // Adds a problem at the key, or at the nearest enclosing section in the file.
  void add_problem(std::string_view path, const std::string& message);
  void add_note(std::string_view path, const std::string& message);
  // Adds a note when the file has the key.
  void note_without_effect(std::string_view path, const std::string& unless) {
    if (find(path) != nullptr) add_note(path, "no effect unless " + unless);
  }

  std::vector<std::string> take_notes() { return std::move(notes_); }
  // Throws ConfigError when there is any problem.
  void throw_if_wrong() const;

 private:
  struct Rule {
    const KeyInfo* info;
    TypeRule type;
  };
  struct Entry {
    const Json::Value* value = nullptr;  // null: unreadable
    Position position;
    std::string written;  // the path as the file has it
    bool wrong = false;
  };
  struct Member {
    const std::string& parent;  // canonical path of the section
    const std::string& written_parent;
    std::string name;
  };
  enum class Section { active, disabled };

  void build_rules();
  void check_object(const Json::Value& object, const std::string& path, const std::string& written,
                    Section section);
  void check_member(const Json::Value& value, const Member& member, Section section);
  void check_known(const Json::Value& value, const std::string& path, Entry& kept, Section section);
  void check_value(const Rule& rule, const Json::Value& value, Entry& entry, Section section);
  bool is_disabled(const Json::Value& object, const std::string& path) const;
  bool drops_auto(std::string_view path) const;
  std::string canonical_name(const std::string& parent, const std::string& name) const;
  std::string unknown_message(const std::string& parent, const std::string& name) const;
  const Rule* rule_of(std::string_view path) const;
  void report(Entry& entry, const std::string& message);
  bool has_enough_problems() const { return problems_.size() >= kMostProblems; }

  const JsonDocument& document_;
  const Schema& schema_;
  std::map<std::string, Rule, std::less<>> rules_;
  std::map<std::string, std::vector<std::string_view>, std::less<>> children_;  // names by section
  std::map<std::string, std::string, std::less<>> aliases_;  // path by alias -> path
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<Problem> problems_;
  std::vector<std::string> notes_;
};

}  // namespace sluice::config
