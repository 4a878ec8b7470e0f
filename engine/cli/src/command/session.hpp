#pragma once
// What every command gets: where to print, whether a JSON object is wanted, and how it was called.

#include <json/value.h>

#include <string>
#include <vector>

#include "terminal/console.hpp"

namespace sluice::cli {

// Confined to thread: main.
class Session {
 public:
  // Text goes to standard output, or to standard error when `json` is true and standard output is
  // for the object.
  Session(std::vector<std::string> argv, bool json);

  Console& console() { return console_; }
  bool json() const { return json_; }
  const std::vector<std::string>& argv() const { return argv_; }

  // The object of --json, one line of standard output; nothing without --json.
  void emit(const Json::Value& object);
  void emit_text(const std::string& json_object);

 private:
  std::vector<std::string> argv_;
  bool json_;
  Console console_;
};

std::string to_line(const Json::Value& object);

}  // namespace sluice::cli
