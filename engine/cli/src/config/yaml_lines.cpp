#include "config/yaml_lines.hpp"

#include <sstream>
#include <utility>
#include <vector>

#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"

namespace sluice::cli {

namespace {

std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Without a comment, which begins with " #" or at the start of the line.
std::string without_comment(const std::string& line) {
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '\'' || line[i] == '"') {
      quote = line[i];
    } else if (line[i] == '#' && (i == 0 || line[i - 1] == ' ')) {
      return line.substr(0, i);
    }
  }
  return line;
}

// YAML 1.1, which PyYAML reads.
Json::Value scalar(const std::string& text) {
  if (text.empty() || text == "null" || text == "~" || text == "Null") return {};
  for (const char* word : {"true", "True", "yes", "on"}) {
    if (text == word) return true;
  }
  for (const char* word : {"false", "False", "no", "off"}) {
    if (text == word) return false;
  }
  const bool is_quoted =
      text.size() > 1 && (text[0] == '\'' || text[0] == '"') && text.back() == text[0];
  if (is_quoted) return text.substr(1, text.size() - 2);
  if (const auto whole = parse_number<std::int64_t>(text)) return Json::Int64(*whole);
  if (const auto real = parse_number<double>(text)) return *real;
  return text;
}

// The position of the colon of "key: value"; npos where the line is no such pair.
std::size_t colon_of(const std::string& content) {
  const std::size_t colon = content.find(':');
  const bool is_pair = colon != std::string::npos && colon > 0 &&
                       (colon + 1 == content.size() || content[colon + 1] == ' ');
  return is_pair ? colon : std::string::npos;
}

bool begins_a_structure(const std::string& value) {
  if (value.empty() || value == "{}" || value == "[]") return false;
  return std::string("[{|>&*!").find(value[0]) != std::string::npos;
}

Json::Value value_of(const std::string& text) {
  if (text == "{}") return Json::objectValue;
  if (text == "[]") return Json::arrayValue;
  return scalar(text);
}

}  // namespace

Json::Value parse_yaml_lines(const std::string& text, const std::string& path) {
  Json::Value root(Json::objectValue);
  // The open objects, each with the indentation of its keys; below 0: not known yet.
  std::vector<std::pair<Json::Value*, int>> open = {{&root, 0}};
  Json::Value* last = nullptr;  // the value of the last key, an object if deeper keys follow
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto fail = [&](const std::string& why) {
      throw InvalidArgument(path + ":" + std::to_string(number) + ": " + why);
    };
    line = without_comment(line);
    const std::string content = trimmed(line);
    if (content.empty() || (content == "---" && root.empty())) continue;
    const int indent = static_cast<int>(line.find_first_not_of(' '));
    if (indent > open.back().second && last != nullptr && last->isNull()) {
      *last = Json::Value(Json::objectValue);
      open.emplace_back(last, indent);
    }
    while (open.size() > 1 && indent < open.back().second) open.pop_back();
    if (indent != open.back().second) fail("unexpected indentation");
    const std::size_t colon = colon_of(content);
    if (colon == std::string::npos)
      fail("expected \"key: value\"; lists and several documents are not read");
    const std::string value = trimmed(content.substr(colon + 1));
    if (begins_a_structure(value))
      fail(
          "expected a plain value: lists, {...}, anchors and longer texts are not read; write "
          "keys as indented lines");
    const std::string key = trimmed(content.substr(0, colon));
    if (open.back().first->isMember(key)) fail("the key " + key + " is given a second time");
    last = &(*open.back().first)[key];
    *last = value_of(value);
  }
  return root;
}

}  // namespace sluice::cli
