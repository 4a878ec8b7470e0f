// config keys, config explain and config schema: what the key tables say.

#include <json/value.h>

#include <algorithm>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/json_schema.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::cli {

namespace {

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

Json::Value key_object(const config::KeyInfo& key) {
  Json::Value object(Json::objectValue);
  object["path"] = std::string(key.path);
  if (!key.alias.empty()) object["alias"] = std::string(key.alias);
  object["type"] = std::string(key.type);
  object["default"] = std::string(key.default_json);
  object["fate"] = std::string(config::name_of(key.fate));
  object["note"] = std::string(key.note);
  return object;
}

Json::Value key_objects(std::span<const config::KeyInfo> keys) {
  Json::Value list(Json::arrayValue);
  for (const config::KeyInfo& key : keys) list.append(key_object(key));
  return list;
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

bool is_among(std::string_view words, const std::string& name) {
  return (", " + std::string(words) + ",").find(", " + name + ",") != std::string::npos;
}

bool is_in_section(std::string_view path, const std::string& name) {
  return ("." + std::string(path)).find("." + name + ".") != std::string::npos;
}

// The rows with this path or last part; else those of a section, which may be named by its last
// part; else the key that other programs call so.
std::vector<const config::KeyInfo*> keys_of(const std::string& name) {
  std::vector<const config::KeyInfo*> found;
  const auto add = [&](const auto& matches) {
    if (!found.empty()) return;
    for (const auto table : {config::key_table(), config::model_key_table()}) {
      for (const config::KeyInfo& key : table) {
        if (matches(key)) found.push_back(&key);
      }
    }
  };
  add([&](const config::KeyInfo& key) { return key.path == name; });
  add([&](const config::KeyInfo& key) {
    return last_part(key.path) == name || (!key.alias.empty() && key.alias == last_part(name));
  });
  add([&](const config::KeyInfo& key) { return is_in_section(key.path, name); });
  add([&](const config::KeyInfo& key) { return is_among(key.words, name); });
  return found;
}

std::string nearest_key(const std::string& name) {
  std::vector<std::string_view> names;
  for (const auto table : {config::key_table(), config::model_key_table()}) {
    for (const config::KeyInfo& key : table) {
      names.push_back(key.path);
      names.push_back(last_part(key.path));
    }
  }
  std::string near = nearest_name(name, names);
  if (near.empty()) near = config::name_of_first_words(name, names);
  return did_you_mean(near);
}

// All that the table says of a key.
std::string explanation(const config::KeyInfo& key) {
  std::string text = key_list({&key, 1});
  if (key.fate == config::Fate::refused) {
    text += key.default_json == "none" || key.default_json == "never"
                ? "    any value is refused\n"
                : "    any value but the default is refused\n";
  }
  const std::string flags = config::flags_of(key.path);
  if (!flags.starts_with("--set")) text += "    flag: " + flags + "\n";
  if (key.auto_json == "open") {
    text += "    \"auto\": the flag must give the value\n";
  } else if (!key.auto_json.empty() || config::is_typed_section(key.path)) {
    const bool is_default = key.auto_json.empty() || key.auto_json == "default";
    const bool is_absent = key.auto_json == "null" || (is_default && key.default_json == "null");
    text += "    \"auto\": " +
            (is_absent    ? "as if the key were absent"
             : is_default ? "the default"
                          : std::string(key.auto_json)) +
            "\n";
  }
  std::string keys;
  for (const config::KeyInfo& other : config::key_table()) {
    if (other.path.starts_with(std::string(key.path) + "."))
      keys += (keys.empty() ? "" : ", ") + std::string(other.path.substr(key.path.size() + 1));
  }
  if (!keys.empty()) text += "    keys of this section: " + keys + "\n";
  if (!key.words.empty()) text += "    elsewhere called: " + std::string(key.words) + "\n";
  return text;
}

}  // namespace

int run_config_explain(const ConfigExplainArguments& arguments, Session& session) {
  const std::vector<const config::KeyInfo*> found = keys_of(arguments.key);
  if (found.empty()) {
    throw InvalidArgument("there is no key \"" + arguments.key + "\"" + nearest_key(arguments.key) +
                          " (sluice config keys lists all of them)");
  }
  Json::Value keys(Json::arrayValue);
  for (const config::KeyInfo* key : found) {
    session.console().print(explanation(*key));
    keys.append(key_object(*key));
  }
  Json::Value object(Json::objectValue);
  object["keys"] = keys;
  session.emit(object);
  return kExitDone;
}

int run_config_schema(Session& session) {
  // The schema is the result itself, so it is JSON with and without --json.
  const std::string schema = config::json_schema();
  if (session.json()) {
    session.emit_text(schema);
  } else {
    session.console().print(schema);
  }
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
