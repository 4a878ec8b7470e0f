#pragma once
// A JSON file in memory: its values, and the line and column of every key; over them the values
// that flags of the command line give.

#include <json/value.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json/json_scan.hpp"
#include "json/text_positions.hpp"
#include "sluice/config/config_error.hpp"

namespace sluice::config {

// Thread-compatible: callers synchronise.
class JsonDocument {
 public:
  // Throws ConfigError when the text is not JSON with an object on top. Repeated keys become
  // problems instead, so that the rest is checked too.
  JsonDocument(std::string_view text, std::string shown_path);
  JsonDocument(const JsonDocument&) = delete;  // the positions refer to the text
  JsonDocument& operator=(const JsonDocument&) = delete;

  const std::string& shown_path() const { return shown_path_; }
  const Json::Value& root() const { return root_; }
  // The text as JSON of RFC 8259, without the values of set().
  const std::string& json() const { return scan_.json; }
  const std::vector<Problem>& repeated_keys() const { return repeated_keys_; }

  // Puts a value over the file's at the path `names`, and makes the sections that are absent. The
  // name of an element of a list is its index. Pointers to values are invalid afterwards.
  void set(const std::vector<std::string>& names, const Json::Value& value,
           const std::string& flag);
  // The flag that gave the value, with set(); empty for a value of the file.
  std::string flag_of(const Json::Value& value) const;

  // The position of the key of `value`, which is a member of an object of this document; line 0
  // when a flag gave it.
  Position position_of_key(const Json::Value& value) const;
  // The position of the value itself.
  Position position_of(const Json::Value& value) const;
  // The value as in the file, shortened, with its type: `"abc" (string)`.
  std::string shown(const Json::Value& value) const;

 private:
  [[noreturn]] void fail(std::size_t offset, const std::string& message) const;
  Position position_at(std::size_t offset) const;
  void mark(Json::Value& value, std::size_t flag) const;
  void parse(bool refuse_repeated_keys);
  void collect_repeated_keys();

  std::string shown_path_;
  std::string text_;
  TextPositions positions_;  // in text_
  ScanResult scan_;
  Json::Value root_;
  std::vector<Problem> repeated_keys_;
  // A value of flags_[i] has the offset json.size() + 1 + i, which no value of the file has.
  std::vector<std::string> flags_;
};

// A JSON text of one value; null when the text is not JSON.
std::optional<Json::Value> parse_json_value(std::string_view text);

// Reads a file of at most 1 MiB. Throws InvalidArgument with the path and the reason.
std::string read_config_file(const std::string& path);

// `text` on one line, at most about 60 characters.
std::string on_one_line(std::string_view text);
// on_one_line() in quotes.
std::string quoted(std::string_view text);

}  // namespace sluice::config
