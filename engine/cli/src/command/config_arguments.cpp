#include "command/config_arguments.hpp"

#include <string>

#include "command/command_line.hpp"
#include "sluice/base/error.hpp"
#include "sluice/config/key_table.hpp"

namespace sluice::cli {

namespace {

// The value as the table's type has it: a name stays a name, a number must be one.
std::string checked_value(const config::FlagInfo& info, const std::string& text) {
  const std::string flag(info.flag);
  if (info.placeholder == "NAME") return text;
  if (info.placeholder == "N") {
    // DeepSpeed's least warm-up; 1 counts as 2.
    const bool is_warmup = info.flag == "--warmup-steps";
    const std::int64_t count = to_integer(flag, text, is_warmup ? 0 : 1);
    return std::to_string(is_warmup && count == 0 ? 1 : count);
  }
  to_real(flag, text);
  return text;
}

std::string help_of(const config::FlagInfo& info) {
  std::string key(info.key);
  const std::size_t last = key.rfind('.');
  const bool is_first = key.ends_with(".0");
  if (is_first || key.ends_with(".1"))
    key = (is_first ? "the first of " : "the second of ") + key.substr(0, last);
  return "sets " + key;
}

// Stands for the steps of --epochs, which follow from the data, where no data is read.
constexpr std::int64_t kStepsOfEpochs = 1'000'000'000'000'000;

void add_epochs_option(CLI::App& command, std::vector<config::Setting>& settings) {
  add_option(command, "--epochs", "N", Need::optional,
             "epochs of the run, as for train: fills a length of \"auto\" too; how many steps they "
             "are is known where the data is read",
             [&settings](const std::string& text) {
               to_epochs(text);
               settings.push_back(setting_of_steps(kStepsOfEpochs, "--epochs"));
             });
}

void add_steps_option(CLI::App& command, std::vector<config::Setting>& settings) {
  add_option(command, "--steps", "N", Need::optional,
             "steps of the run: value of scheduler.params.total_num_steps where the file has "
             "\"auto\"",
             [&settings](const std::string& text) {
               settings.push_back(setting_of_steps(to_integer("--steps", text, 1)));
             });
}

void add_check(CLI::App& config, Building& building) {
  CLI::App& check =
      add_command(config, building, "check",
                  "check training configurations, list all mistakes, and show the resolved values",
                  "sluice config check ds.json\n  sluice config check ds.json --learning-rate 1e-4 "
                  "--steps 1000");
  CLI::Option* files = check.add_option(
      "FILE", building.check.paths,
      "training configurations, DeepSpeed JSON; a file with nothing but \"aio\" and \"sluice\" "
      "replaces keys of the one before it");
  files->type_name("FILE...");
  files->required();
  add_setting_options(check, building.check.settings);
  add_steps_option(check, building.check.settings);
  add_epochs_option(check, building.check.settings);
  when_named(check, building, [&building] { return building.check; });
}

void add_resolve(CLI::App& config, Building& building) {
  CLI::App& resolve =
      add_command(config, building, "resolve",
                  "show every value of a run and where it comes from: file, flag, default or plan",
                  "sluice config resolve ds.json --learning-rate 1e-4");
  add_text(resolve, "FILE", "FILE", Need::required, "training configuration, DeepSpeed JSON",
           building.resolve.path);
  add_files(resolve, "--config", Need::optional,
            "a file whose keys of \"aio\" and \"sluice\" replace those before",
            building.resolve.tuned_paths);
  add_setting_options(resolve, building.resolve.settings);
  add_steps_option(resolve, building.resolve.settings);
  add_epochs_option(resolve, building.resolve.settings);
  when_named(resolve, building, [&building] { return building.resolve; });
}

void add_rates(CLI::App& config, Building& building) {
  CLI::App& rates = add_command(config, building, "rates",
                                "show the learning rates of a configuration, as a chart",
                                "sluice config rates ds.json --steps 1000");
  add_text(rates, "FILE", "FILE", Need::required, "training configuration, DeepSpeed JSON",
           building.rates.path);
  add_setting_options(rates, building.rates.settings);
  add_option(
      rates, "--steps", "N", Need::optional,
      "steps to show (default: the length of the schedule, or 100); the length of a schedule "
      "that has \"auto\"",
      [&rates = building.rates](const std::string& text) {
        rates.steps = to_integer("--steps", text, 1);
        rates.settings.push_back(setting_of_steps(*rates.steps));
      });
  when_named(rates, building, [&building] { return building.rates; });
}

// The flags that give values of keys, without a value and in no help, since the argument KEY may be
// one of them.
void add_flags_as_keys(CLI::App& command, std::string& key) {
  const auto add = [&](const std::string& names, const std::string& of_key) {
    command.add_flag_callback(names, [&key, of_key] { key = of_key; })->group("");
  };
  for (const config::FlagInfo& info : config::flag_table()) {
    std::string names(info.flag);
    if (!info.short_name.empty()) names += "," + std::string(info.short_name);
    const bool is_element = info.key.ends_with(".0") || info.key.ends_with(".1");  // of a list
    add(names, std::string(info.key.substr(0, info.key.size() - (is_element ? 2 : 0))));
  }
  add("--steps,--epochs", "scheduler.params.total_num_steps");
}

void add_explain(CLI::App& config, Building& building) {
  CLI::App& explain =
      add_command(config, building, "explain",
                  "say what a key means here: its type, default, effect, and the flag for it",
                  "sluice config explain gradient_clipping");
  add_text(explain, "KEY", "KEY", Need::optional,
           "key path, its last part, or a flag for it: optimizer.params.lr, lr, --learning-rate",
           building.explain.key);
  add_flags_as_keys(explain, building.explain.key);
  when_named(explain, building, [&building] {
    if (building.explain.key.empty()) {
      throw InvalidArgument("missing KEY (sluice config explain --help lists what there is)");
    }
    return building.explain;
  });
}

void add_convert(CLI::App& config, Building& building) {
  CLI::App& convert = add_command(
      config, building, "convert",
      "turn a JSON file of transformers' TrainingArguments, or a YAML file of Accelerate, into a "
      "training configuration",
      "sluice config convert training_args.json --out ds.json");
  add_text(convert, "FILE", "FILE", Need::required,
           "TrainingArguments as JSON (to_json_string), or Accelerate's default_config.yaml",
           building.convert.path);
  add_text(convert, "--out", "FILE", Need::optional,
           "file to write (default: standard output); an existing one is not replaced",
           building.convert.out_path);
  when_named(convert, building, [&building] { return building.convert; });
}

}  // namespace

config::Setting setting_of_steps(std::int64_t steps, const std::string& flag) {
  return {"scheduler.params.total_num_steps", std::to_string(steps), flag, true};
}

void add_setting_options(CLI::App& command, std::vector<config::Setting>& settings) {
  const std::string usual_group = command.option_defaults()->get_group();
  command.option_defaults()->group(
      "values of the configuration, in place of the file's and for its \"auto\"");
  for (const config::FlagInfo& info : config::flag_table()) {
    const std::string flag(info.flag), key(info.key);
    if (info.placeholder.empty()) {
      const auto set = [&settings, flag, key] { settings.push_back({key, "true", flag, false}); };
      command.add_flag_callback(flag, set, help_of(info))->disable_flag_override();
      continue;
    }
    std::string names = flag;
    if (!info.short_name.empty()) names += "," + std::string(info.short_name);
    add_option(command, names, std::string(info.placeholder), Need::optional, help_of(info),
               [&settings, &info, flag, key](const std::string& text) {
                 settings.push_back({key, checked_value(info, text), flag, false});
               });
  }
  CLI::Option* set = command.add_option_function<std::vector<std::string>>(
      "--set",
      [&settings](const std::vector<std::string>& texts) {
        for (const std::string& text : texts) settings.push_back(config::parse_setting(text));
      },
      "value of any key, as in --set zero_optimization.stage=3; may be given again");
  set->allow_extra_args(false)->type_name("KEY=VALUE");
  command.option_defaults()->group(usual_group);
}

void add_config(CLI::App& root, Building& building) {
  CLI::App& config = *root.add_subcommand(
      "config", "check, explain and convert training configurations; list their keys");
  config.set_help_flag("-h,--help", "this text");
  config.footer("sluice config check ds.json");
  config.require_subcommand(1);
  add_check(config, building);
  add_resolve(config, building);
  add_rates(config, building);
  add_explain(config, building);
  CLI::App& keys = add_command(
      config, building, "keys",
      "list every key of the configuration and of the model file, and each key's effect",
      "sluice config keys");
  when_named(keys, building, [] { return ConfigKeysArguments{}; });
  CLI::App& schema = add_command(config, building, "schema",
                                 "print a JSON Schema of the configuration, for editors",
                                 "sluice config schema > sluice.schema.json");
  when_named(schema, building, [] { return ConfigSchemaArguments{}; });
  add_convert(config, building);
}

}  // namespace sluice::cli
