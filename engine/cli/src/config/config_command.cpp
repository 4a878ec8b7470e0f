// config check: the values that a file resolves to. config keys: the key tables.

#include <json/value.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "command/commands.hpp"
#include "config/resolved_config.hpp"
#include "config/training_config.hpp"
#include "files/input_file.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/key_table.hpp"
#include "sluice/config/train_config.hpp"

namespace sluice::cli {

namespace {

// A cell for people: strings without quotes.
std::string shown(const Json::Value& value) {
  if (value.isString()) return value.asString();
  return value.isNull() ? "none" : to_line(value);
}

std::string default_cell(std::string_view default_json) {
  return default_json.empty() ? "-" : std::string(default_json);
}

// One paragraph for each key. A table would be wider than a terminal.
std::string key_list(std::span<const config::KeyInfo> keys) {
  std::vector<std::vector<std::string>> rows;
  for (const config::KeyInfo& key : keys) {
    std::string path(key.path);
    if (!key.alias.empty()) path += " (" + std::string(key.alias) + ")";
    rows.push_back({path, std::string(config::name_of(key.fate)), default_cell(key.default_json),
                    std::string(key.type)});
  }
  std::string text;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    text += rows[i][0] + "\n    " + rows[i][1] + ", " + rows[i][3];
    text += rows[i][2] == "required" ? ", required\n" : ", default " + rows[i][2] + "\n";
    if (!keys[i].note.empty()) text += "    " + std::string(keys[i].note) + "\n";
  }
  return text;
}

Json::Value key_objects(std::span<const config::KeyInfo> keys) {
  Json::Value list(Json::arrayValue);
  for (const config::KeyInfo& key : keys) {
    Json::Value object(Json::objectValue);
    object["path"] = std::string(key.path);
    if (!key.alias.empty()) object["alias"] = std::string(key.alias);
    object["type"] = std::string(key.type);
    object["default"] = std::string(key.default_json);
    object["fate"] = std::string(config::name_of(key.fate));
    object["note"] = std::string(key.note);
    list.append(object);
  }
  return list;
}

}  // namespace

int run_config_check(const ConfigCheckArguments& arguments, Session& session) {
  for (const std::string& path : arguments.paths) require_file(path);
  const config::TrainConfig config = load_training_config(
      arguments.paths.front(), {arguments.paths.begin() + 1, arguments.paths.end()});
  std::vector<std::vector<std::string>> rows;
  Json::Value values(Json::objectValue);
  for (const auto& [key, value] : resolved_values(config)) {
    rows.push_back({key, shown(value)});
    values[key] = value;
  }
  std::size_t width = 0;
  for (const std::vector<std::string>& row : rows) width = std::max(width, row[0].size());
  Console& console = session.console();
  for (const std::vector<std::string>& row : rows) {
    console.print(row[0] + std::string(width + 2 - row[0].size(), ' ') + row[1]);
  }
  if (!config.notes.empty()) console.print("");
  for (const std::string& note : config.notes) console.print(note);
  std::string files;
  for (const std::string& path : arguments.paths) files += (files.empty() ? "" : ", ") + path;
  console.print("\n" + files + ": no mistakes");

  Json::Value object(Json::objectValue);
  object["file"] = arguments.paths.front();
  for (std::size_t i = 1; i < arguments.paths.size(); ++i)
    object["files_over_it"].append(arguments.paths[i]);
  object["values"] = values;
  object["notes"] = Json::Value(Json::arrayValue);
  for (const std::string& note : config.notes) object["notes"].append(note);
  session.emit(object);
  return kExitDone;
}

int run_config_keys(Session& session) {
  Console& console = session.console();
  console.print("keys of the training configuration (--config)\n\n" +
                key_list(config::key_table()));
  console.print("\nkeys of the model file (--model)\n\n" + key_list(config::model_key_table()));
  Json::Value object(Json::objectValue);
  object["config"] = key_objects(config::key_table());
  object["model"] = key_objects(config::model_key_table());
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
