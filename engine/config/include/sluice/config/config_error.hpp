#pragma once
// What is wrong with a configuration file: every mistake of the file in one exception, each with
// the line and column of its key. Thread-compatible: callers synchronise.

#include <string>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice::config {

// One mistake. `line` and `column` count from 1 and point at the key (at the section's key where a
// key is missing, at the offending text where the JSON itself is broken); columns count characters.
struct Problem {
  int line = 1;
  int column = 1;
  std::string key_path;  // "zero_optimization.stage"; empty when no key is concerned
  std::string message;
};

// what() is one line per problem, `file:line:column: key: message`, sorted by position, then a line
// with their number.
class ConfigError : public InvalidArgument {
 public:
  ConfigError(const std::string& shown_path, std::vector<Problem> problems);
  // Sorted by position; never empty.
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

}  // namespace sluice::config
