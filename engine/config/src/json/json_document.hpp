#pragma once
// A JSON file in memory: its values, and the line and column of every key.

#include <json/value.h>

#include <string>
#include <string_view>
#include <vector>

#include "json/json_scan.hpp"
#include "json/text_positions.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::config {

// Immutable after construction. Thread-compatible: callers synchronise.
class JsonDocument {
 public:
  // Throws ConfigError when the text is not JSON with an object on top. Repeated keys become
  // problems instead, so that the rest is checked too.
  JsonDocument(std::string_view text, std::string shown_path);
  JsonDocument(const JsonDocument&) = delete;  // the positions refer to the text
  JsonDocument& operator=(const JsonDocument&) = delete;

  const std::string& shown_path() const { return shown_path_; }
  const Json::Value& root() const { return root_; }
  const std::vector<Problem>& repeated_keys() const { return repeated_keys_; }

  // The position of the key of `value`, which is a member of an object of this document.
  Position position_of_key(const Json::Value& value) const;
  // The position of the value itself.
  Position position_of(const Json::Value& value) const;
  // The value as in the file, shortened, with its type: `"abc" (string)`.
  std::string shown(const Json::Value& value) const;

 private:
  [[noreturn]] void fail(std::size_t offset, const std::string& message) const;
  Position position_at(std::size_t offset) const;
  void parse(bool refuse_repeated_keys);
  void collect_repeated_keys();

  std::string shown_path_;
  std::string text_;
  TextPositions positions_;  // in text_
  ScanResult scan_;
  Json::Value root_;
  std::vector<Problem> repeated_keys_;
};

// Reads a file of at most 1 MiB. Throws InvalidArgument with the path and the reason.
std::string read_config_file(const std::string& path);

// `text` in quotes, on one line, at most about 60 characters.
std::string quoted(std::string_view text);

}  // namespace sluice::config
