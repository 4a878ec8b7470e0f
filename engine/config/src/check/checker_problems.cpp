// Problems inside lists, advice, notes, and the error with all problems.
#include <algorithm>
#include <utility>

#include "check/checker.hpp"

namespace sluice::config {

void Checker::add_problem_in(std::string_view path, const Json::Value& value,
                             const std::string& name, const std::string& message) {
  Entry& list = entries_.find(path)->second;
  list.wrong = true;
  if (has_enough_problems()) return;
  const Position position = document_.position_of_key(value);
  problems_.push_back({position.line, position.column, on_one_line(list.written + "." + name),
                       message, document_.flag_of(value)});
}

// "bf16": true, "offload_optimizer": "cpu", "zero_optimization": 1 or "optimizer": "AdamW"
std::string Checker::section_advice(const Json::Value& value, const std::string& path) const {
  const auto write = [](const char* key, const std::string& text) {
    return std::string("; write {\"") + key + "\": " + text + "}";
  };
  const Rule* device = rule_of(path + ".device");
  const Rule* stage = rule_of(path + ".stage");
  if (device != nullptr && value.isString() && device->type.accepts(value))
    return write("device", quoted(value.asString()));
  if (device != nullptr && value.isBool())
    return write("device", value.asBool() ? "\"cpu\"" : "\"none\"");
  if (stage != nullptr && value.isIntegral() && stage->type.accepts(value))
    return write("stage", value.asString());
  if (rule_of(path + ".type") != nullptr && value.isString())
    return write("type", quoted(value.asString()));
  if (!value.isBool() || rule_of(path + ".enabled") == nullptr) return "";
  return write("enabled", value.asBool() ? "true" : "false");
}

bool Checker::has_problem_with(std::string_view text) const {
  return std::any_of(problems_.begin(), problems_.end(), [&](const Problem& problem) {
    return problem.message.find(text) != std::string::npos;
  });
}

void Checker::add_note(std::string_view path, const std::string& message) {
  add_line("note: ", path, message);
}

void Checker::add_warning(std::string_view path, const std::string& message) {
  add_line("warning: ", path, message);
}

void Checker::add_line(const char* kind, std::string_view path, const std::string& message) {
  const auto found = entries_.find(path);
  const std::string shown = found == entries_.end() ? std::string(path) : found->second.written;
  notes_.push_back(kind + shown + ": " + message);
}

void Checker::throw_if_wrong() {
  if (!open_autos_.empty()) {
    std::string keys;
    for (const std::string& path : open_autos_)
      keys += (keys.empty() ? "" : ", ") + path + if_flags(" (" + flags_of(path) + ")");
    const auto place = [&](const std::string& path) {
      const Position at = entries_.find(path)->second.position;
      return std::pair(at.line, at.column);
    };
    const std::string first_path =
        *std::min_element(open_autos_.begin(), open_autos_.end(),
                          [&](const auto& a, const auto& b) { return place(a) < place(b); });
    const Entry& first = entries_.find(first_path)->second;
    problems_.push_back(
        {first.position.line, first.position.column, "",
         std::string("\"auto\" is filled in by the Hugging Face Trainer, from its arguments. ") +
             (has_flags() ? "Give the flags here, or write the values: " : "Write the values: ") +
             keys,
         first.flag});
    open_autos_.clear();
  }
  if (!problems_.empty()) throw ConfigError(document_.shown_path(), problems_);
}

}  // namespace sluice::config
