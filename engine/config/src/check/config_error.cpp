#include "sluice/config/config_error.hpp"

#include <algorithm>
#include <cassert>
#include <tuple>

#include "check/problem_limit.hpp"
#include "sluice/base/text.hpp"

namespace sluice::config {

namespace {

std::vector<Problem> sorted(std::vector<Problem> problems) {
  assert(!problems.empty());
  std::stable_sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
  return problems;
}

std::string text_of(const std::string& shown_path, const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : sorted(problems)) {
    text += (problem.flag.empty() ? shown_path + ":" + std::to_string(problem.line) + ":" +
                                        std::to_string(problem.column)
                                  : problem.flag) +
            ": " + (problem.key_path.empty() ? "" : problem.key_path + ": ") + problem.message +
            "\n";
  }
  text += (problems.size() < kMostProblems ? "" : "the first ") +
          counted(problems.size(), "problem") + " in " + shown_path;
  return text;
}

}  // namespace

ConfigError::ConfigError(const std::string& shown_path, std::vector<Problem> problems)
    : InvalidArgument(text_of(shown_path, problems)), problems_(sorted(std::move(problems))) {}

}  // namespace sluice::config
