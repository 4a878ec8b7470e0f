// Problems inside lists, and the error with all problems.
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

void Checker::throw_if_wrong() {
  if (!open_autos_.empty()) {
    std::string keys;
    for (const std::string& path : open_autos_)
      keys += (keys.empty() ? "" : ", ") + path + " (" + flags_of(path) + ")";
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
         "\"auto\" is filled in by the Hugging Face Trainer, from its arguments. Give the flags "
         "here, or write the values: " +
             keys,
         first.flag});
    open_autos_.clear();
  }
  if (!problems_.empty()) throw ConfigError(document_.shown_path(), problems_);
}

}  // namespace sluice::config
