// docs/config.md shows the rows of the key table, and its examples are true.
#include <fstream>

#include "config_testing.hpp"
#include "message_of.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::config::test {
namespace {

bool is_json(std::string_view default_json) {
  return default_json != "required" && default_json != "none" && default_json != "never";
}

// The row of docs/config.md for a row of the table in the code.
std::string document_row(const KeyInfo& info) {
  const auto code = [](std::string_view text) { return "`" + std::string(text) + "`"; };
  std::string key = code(info.path);
  if (!info.alias.empty()) key += " (also " + code(info.alias) + ")";
  const std::string default_cell = info.default_json == "required" ? "required"
                                   : is_json(info.default_json)    ? code(info.default_json)
                                                                   : "";
  return "| " + key + " | " + std::string(info.type) + " | " + default_cell + " | " +
         std::string(name_of(info.fate)) + " | " + std::string(info.note) + " |";
}

std::vector<std::string> documented_rows(const std::string& begin_mark,
                                         const std::string& end_mark) {
  std::ifstream file(std::string(SLUICE_DOCS_DIR) + "/config.md");
  std::vector<std::string> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == end_mark) inside = false;
    if (inside && line.starts_with("| `")) rows.push_back(line);
    if (line == begin_mark) inside = true;
  }
  return rows;
}

void expect_same_rows(const std::vector<std::string>& documented, std::span<const KeyInfo> table) {
  std::vector<std::string> expected;
  for (const KeyInfo& info : table) expected.push_back(document_row(info));
  if (documented == expected) return;
  std::string all;
  for (const std::string& row : expected) all += row + "\n";
  ADD_FAILURE() << "docs/config.md differs from the code; its rows should be:\n" << all;
}

TEST(KeyTable, IsTheTableOfTheDocumentation) {
  expect_same_rows(documented_rows("<!-- training keys -->", "<!-- end of training keys -->"),
                   key_table());
  expect_same_rows(documented_rows("<!-- model keys -->", "<!-- end of model keys -->"),
                   model_key_table());
}

// The n-th fenced block after a heading.
std::string documented_block(const std::string& heading) {
  std::ifstream file(std::string(SLUICE_DOCS_DIR) + "/config.md");
  std::string block;
  bool found = false, inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == heading) found = true;
    if (!found) continue;
    if (line.starts_with("```")) {
      if (inside) return block;
      inside = true;
    } else if (inside) {
      block += line + "\n";
    }
  }
  return block;
}

TEST(ConfigDocumentation, ItsExampleIsValid) {
  const std::string example = documented_block("## A complete file");
  ASSERT_FALSE(example.empty());
  EXPECT_EQ(shown(problems_of(example)), "");
}

TEST(ConfigDocumentation, ItsErrorsAreThoseOfTheProgram) {
  const std::string file = documented_block("## What a wrong file gives");
  const std::string answer = documented_block("The answer, on standard error:");
  const std::string said = sluice::test::message_of<ConfigError>(
      [&] { parse_train_config(file, "ds.json", of_program()); });
  EXPECT_EQ(said + "\n", answer) << file;
}

}  // namespace
}  // namespace sluice::config::test
