#pragma once
// Session: the context of a command: where to print, whether a JSON object is wanted, and argv.

#include <json/value.h>

#include <string>
#include <vector>

#include "terminal/console.hpp"

namespace sluice::cli {

// Confined to thread: main.
class Session {
 public:
  // Text goes to standard output. With `json` the text goes to standard error, and standard output
  // carries only the object.
  Session(std::vector<std::string> argv, bool json);

  Console& console() { return console_; }
  bool json() const { return json_; }
  const std::vector<std::string>& argv() const { return argv_; }

  // Writes the object of --json as one line of standard output; does nothing without --json.
  void emit(const Json::Value& object);
  void emit_text(const std::string& json_object);

 private:
  std::vector<std::string> argv_;
  bool json_;
  Console console_;
};

// The object as JSON text on one line.
std::string to_line(const Json::Value& object);

}  // namespace sluice::cli
