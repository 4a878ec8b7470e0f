#pragma once
// Shared by the tests of the configuration: files from key paths, and errors as text.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::config::test {

// JSON text from key paths and JSON values, one key a line; later values replace earlier ones.
class JsonText {
 public:
  JsonText() = default;
  explicit JsonText(const std::vector<std::pair<std::string, std::string>>& values) {
    for (const auto& [path, json] : values) set(path, json);
  }

  JsonText& set(const std::string& path, const std::string& json) {
    const std::size_t dot = path.find('.');
    if (dot == std::string::npos) {
      members_[path] = JsonText();
      members_[path].leaf_ = json;
    } else {
      JsonText& section = members_[path.substr(0, dot)];
      section.leaf_.clear();
      section.set(path.substr(dot + 1), json);
    }
    return *this;
  }

  std::string text() const {
    if (!leaf_.empty()) return leaf_;
    std::string out = "{";
    for (const auto& [name, member] : members_) {
      out += (out.size() == 1 ? "\n" : ",\n") + ("\"" + name + "\": ") + member.text();
    }
    return out + "\n}";
  }

 private:
  std::string leaf_;
  std::map<std::string, JsonText> members_;
};

// As the program loads.
inline LoadOptions of_program(int world_size = 1, std::vector<Setting> settings = {}) {
  return {.world_size = world_size, .settings = std::move(settings), .has_flags = true};
}

// The smallest training configuration.
inline JsonText minimal() {
  return JsonText({{"train_batch_size", "8"}, {"optimizer.type", "\"AdamW\""}});
}

inline TrainConfig parse(const JsonText& json, int world_size = 1) {
  return parse_train_config(json.text(), "ds.json", of_program(world_size));
}

// Empty when the text is accepted.
inline std::vector<Problem> problems_of(const std::string& text, int world_size = 1) {
  try {
    parse_train_config(text, "ds.json", of_program(world_size));
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}
inline std::vector<Problem> problems_of(const JsonText& json, int world_size = 1) {
  return problems_of(json.text(), world_size);
}

inline std::vector<Problem> model_problems_of(const std::string& text) {
  try {
    parse_model_config(text, "config.json");
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

// "3:5: key: message" for messages of failing tests, and for comparing.
inline std::string shown(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& p : problems) {
    out += std::to_string(p.line) + ":" + std::to_string(p.column) + ": " + p.key_path + ": " +
           p.message + "\n";
  }
  return out;
}

// The rest of `text` from a line and column, both from 1 (ASCII text).
inline std::string text_at(const std::string& text, int line, int column) {
  std::size_t at = 0;
  for (int i = 1; i < line; ++i) at = text.find('\n', at) + 1;
  return text.substr(at + static_cast<std::size_t>(column) - 1);
}

}  // namespace sluice::config::test
