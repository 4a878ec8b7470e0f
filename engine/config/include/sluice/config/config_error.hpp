#pragma once
// The error of a configuration file: one exception with every mistake, each with the line and
// column of its key. Thread-compatible: callers synchronise.

#include <string>
#include <vector>

#include "sluice/base/error.hpp"

namespace sluice::config {

// One mistake. `line` and `column` count from 1 and point at the key; columns count characters. For
// a missing key they point at the section's key, for broken JSON at the offending text.
struct Problem {
  int line = 1;
  int column = 1;
  std::string key_path;  // "zero_optimization.stage"; empty when the mistake is in no key
  std::string message;
  std::string flag = {};  // "--learning-rate" when it gave the value; otherwise empty
};

// Every mistake of a file, or 100 of them. what() has one line per problem, `file:line:column: key:
// message` or `flag: key: message`, sorted by position, then a line with the number of problems.
class ConfigError : public InvalidArgument {
 public:
  ConfigError(const std::string& shown_path, std::vector<Problem> problems);
  // Sorted by position; never empty.
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

}  // namespace sluice::config
