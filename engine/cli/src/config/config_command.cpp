// config check and config resolve: the values that files resolve to.

#include <json/value.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "command/commands.hpp"
#include "config/resolved_config.hpp"
#include "config/training_config.hpp"
#include "files/input_file.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/text.hpp"
#include "sluice/config/lr_schedule.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/nvme/file_system.hpp"
#include "sluice/plan/storage_choices.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// A cell for people: strings without quotes.
std::string shown(const Json::Value& value) {
  if (value.isString()) return value.asString();
  return value.isNull() ? "none" : to_line(value);
}

// A configuration, and the files over it.
struct ConfigFiles {
  std::string path;
  std::vector<std::string> tuned_paths;
};

// A file with nothing but "aio" and "sluice" goes over the one before it.
std::vector<ConfigFiles> grouped(const std::vector<std::string>& paths) {
  std::vector<ConfigFiles> all;
  for (const std::string& path : paths) {
    if (!all.empty() && is_file(path) && config::is_tuned_file(path)) {
      all.back().tuned_paths.push_back(path);
    } else {
      all.push_back({path, {}});
    }
  }
  return all;
}

// Adds the row of a value; a list of objects has a row for each member.
void add_rows(const std::string& key, const Json::Value& value, const std::string& remark,
              std::vector<std::vector<std::string>>& rows) {
  if (!value.isArray() || value.empty() || !value[0U].isObject()) {
    rows.push_back({key, shown(value), remark});
    return;
  }
  for (Json::ArrayIndex i = 0; i < value.size(); ++i) {
    for (const std::string& name : value[i].getMemberNames())
      rows.push_back({key + "." + std::to_string(i) + "." + name, shown(value[i][name]), remark});
  }
}

// The notes of the file, a warning of steps (--steps) behind the end of its schedule, and a caution
// for directories that are memory or across a network.
std::vector<std::string> all_notes(const config::TrainConfig& config,
                                   const std::vector<config::Setting>& settings) {
  std::vector<std::string> notes = config.notes;
  for (const config::Setting& setting : settings) {
    const std::int64_t steps =
        setting.flag == "--steps" ? parse_number<std::int64_t>(setting.value).value_or(0) : 0;
    const std::string at_zero = config::steps_at_zero(config.scheduler, steps);
    if (!at_zero.empty()) notes.push_back("warning: " + at_zero);
  }
  const auto length = config.origins.find("scheduler.params.total_num_steps");
  if (length != config.origins.end() && length->second == "--epochs")
    notes.push_back(
        "note: scheduler.params.total_num_steps: how many steps the epochs are is "
        "known where the data is read (train, plan); 1e15 stands for it here");
  const auto add_caution = [&notes](const std::string& directory, const std::string& before) {
    const std::string caution = nvme::file_system_caution(plan::existing_part(directory));
    const std::string note = "caution: " + before + caution;
    if (!caution.empty() && std::find(notes.begin(), notes.end(), note) == notes.end())
      notes.push_back(note);
  };
  for (const config::OffloadConfig* offload :
       {&config.zero.offload_param, &config.zero.offload_optimizer}) {
    for (const std::string& directory : offload->directories) add_caution(directory, "");
  }
  const std::string& checkpoints = config.sluice.checkpoints.directory;
  if (!checkpoints.empty()) add_caution(checkpoints, "checkpoints go to " + checkpoints + ": ");
  return notes;
}

void print_notes(const std::vector<std::string>& notes, Console& console) {
  if (!notes.empty()) console.print("");
  for (const std::string& note : notes) console.print(note);
}

Json::Value list_of(const std::vector<std::string>& notes) {
  Json::Value list(Json::arrayValue);
  for (const std::string& note : notes) list.append(note);
  return list;
}

// Prints the values of a configuration, and returns the object of --json.
Json::Value check_one(const ConfigFiles& files, const std::vector<config::Setting>& settings,
                      Console& console) {
  require_config(files.path);
  const config::TrainConfig config =
      load_training_config(files.path, {.tuned_paths = files.tuned_paths, .settings = settings});
  std::vector<std::vector<std::string>> rows;
  Json::Value object(Json::objectValue);
  object["file"] = files.path;
  for (const std::string& path : files.tuned_paths) object["files_over_it"].append(path);
  for (const auto& [key, value] : resolved_values(config)) {
    const bool is_default = origin_of(config, key, value) == "default";
    add_rows(key, value, is_default ? "default" : "", rows);
    object["values"][key] = value;
    if (is_default) object["defaults"].append(key);
  }
  console.print(format_table(rows, Alignment::left));
  const std::vector<std::string> notes = all_notes(config, settings);
  print_notes(notes, console);
  std::string names = files.path;
  for (const std::string& path : files.tuned_paths) names += ", " + path;
  console.print("\n" + names + ": no mistakes\n");
  object["notes"] = list_of(notes);
  return object;
}

}  // namespace

int run_config_check(const ConfigCheckArguments& arguments, Session& session) {
  const std::vector<ConfigFiles> all = grouped(arguments.paths);
  if (all.size() == 1) {  // a mistake ends the command, as of any other
    session.emit(check_one(all.front(), arguments.settings, session.console()));
    return kExitDone;
  }
  Json::Value object(Json::objectValue);
  object["files"] = Json::Value(Json::arrayValue);
  int wrong = 0;
  for (const ConfigFiles& files : all) {
    try {
      object["files"].append(check_one(files, arguments.settings, session.console()));
    } catch (const InvalidArgument& error) {
      ++wrong;
      const bool has_place = dynamic_cast<const config::ConfigError*>(&error) != nullptr;
      std::fprintf(stderr, "%s%s\n", has_place ? "" : "sluice: ", printable(error.what()).c_str());
      Json::Value failure(Json::objectValue);
      failure["file"] = files.path;
      failure["error"] = printable(error.what());
      object["files"].append(failure);
    }
  }
  session.console().print(std::to_string(all.size()) + " configurations, " + std::to_string(wrong) +
                          " with mistakes");
  session.emit(object);
  return wrong == 0 ? kExitDone : kExitUsage;
}

int run_config_resolve(const ConfigResolveArguments& arguments, Session& session) {
  require_config(arguments.path);
  for (const std::string& path : arguments.tuned_paths) require_file("--config", path);
  const config::TrainConfig config = load_training_config(
      arguments.path, {.tuned_paths = arguments.tuned_paths, .settings = arguments.settings});
  std::vector<std::vector<std::string>> rows;
  Json::Value values(Json::objectValue);
  for (const auto& [key, value] : resolved_values(config)) {
    const std::string origin = origin_of(config, key, value);
    add_rows(key, value, origin, rows);
    values[key]["value"] = value;
    values[key]["origin"] = origin;
  }
  session.console().print(format_table(rows, Alignment::left));
  const std::vector<std::string> notes = all_notes(config, arguments.settings);
  print_notes(notes, session.console());
  Json::Value object(Json::objectValue);
  object["file"] = arguments.path;
  object["values"] = values;
  object["notes"] = list_of(notes);
  session.emit(object);
  return kExitDone;
}

}  // namespace sluice::cli
