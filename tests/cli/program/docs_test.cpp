// docs/cli.md against the program: the same commands, the same flags.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "cli/run_program.hpp"

namespace sluice::test {
namespace {

// Flags at the start of help lines, "-h, --help" included.
std::set<std::string> flags_of_help(const std::string& command) {
  std::vector<std::string> arguments;
  std::istringstream words(command);
  for (std::string word; words >> word;) arguments.push_back(word);
  arguments.emplace_back("--help");
  std::set<std::string> flags;
  std::istringstream lines(run_sluice(arguments).out);
  const std::regex flag("^  (-[a-z], )?(--[a-z-]+).*");
  for (std::string line; std::getline(lines, line);) {
    if (std::smatch match; std::regex_match(line, match, flag)) flags.insert(match[2]);
  }
  return flags;
}

// Flags in the first cell of the table rows below "## HEADING", as far as the next heading of that
// level. A row for the value flags stands for all of their section.
std::set<std::string> flags_of_docs(const std::string& heading) {
  std::set<std::string> flags;
  std::istringstream lines(file_text(SLUICE_CLI_DOCS));
  bool inside = false;
  const std::regex row("^\\| `(--[a-z-]+).*");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("## ", 0) == 0) inside = line == "## " + heading;
    if (inside && line.rfind("| [value flags]", 0) == 0) flags.merge(flags_of_docs("Value flags"));
    if (std::smatch match; inside && std::regex_match(line, match, row)) flags.insert(match[1]);
  }
  return flags;
}

class Docs : public ::testing::TestWithParam<const char*> {};

TEST_P(Docs, ListExactlyTheFlagsOfTheProgram) {
  std::set<std::string> of_program = flags_of_help(GetParam());
  ASSERT_GE(of_program.size(), 2U);
  // Every command has these flags; docs/cli.md lists them once, before the commands.
  of_program.erase("--help");
  of_program.erase("--json");
  EXPECT_EQ(flags_of_docs("sluice " + std::string(GetParam())), of_program);
}
INSTANTIATE_TEST_SUITE_P(EveryCommand, Docs,
                         ::testing::Values("train", "plan", "report", "generate", "export",
                                           "doctor", "config check", "config resolve",
                                           "config rates", "config explain", "config schema",
                                           "config convert", "config keys", "nvme bench",
                                           "nvme tune", "nvme verify", "nvme clean", "launch"));

TEST(DocsOfCommands, AreThereForEveryCommandOfTheProgram) {
  const std::string docs = file_text(SLUICE_CLI_DOCS);
  std::istringstream lines(run_sluice({"--help"}).out);
  bool inside = false;
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) inside = false;
    if (inside && line.size() > 2 && line[2] != ' ') {
      const std::string name = line.substr(2, line.find(' ', 2) - 2);
      EXPECT_THAT(docs, ::testing::HasSubstr("\n## sluice " + name)) << name;
      ++commands;
    }
    if (line == "commands:") inside = true;
  }
  EXPECT_EQ(commands, 9);
}

TEST(Scripts, SayWhatTheyDoFromAnyFolder) {
  namespace fs = std::filesystem;
  const fs::path scripts = fs::path(SLUICE_CLI_DOCS).parent_path().parent_path() / "scripts";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(scripts)) {
    const std::string name = entry.path().filename();
    if (name == "lib.sh" || entry.path().extension() != ".sh") continue;  // sourced, not run
    const ProgramResult result =
        run_program({"/bin/sh", "-c", "cd \"$0\" && exec ./scripts/\"$1\" --help",
                     scripts.parent_path(), name});
    EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
    EXPECT_GT(result.out.size(), 40U) << name;
    ++count;
  }
  EXPECT_GE(count, 5);
}

}  // namespace
}  // namespace sluice::test
