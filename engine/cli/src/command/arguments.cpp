#include "command/arguments.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "command/command_builder.hpp"
#include "command/command_line.hpp"
#include "command/version.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

// The options that say which run is meant; shared by train and plan, so that one line works for
// both.
void add_run_options(CLI::App& command, Building& building, Need data_need) {
  train::TrainRequest& run = building.run;
  add_texts(command, "--config", "FILE", Need::required,
            "training configuration, DeepSpeed JSON; given again: a file whose keys of \"aio\" and "
            "\"sluice\" replace those before, as sluice nvme tune writes it",
            building.configs);
  add_text(command, "--model", "FILE", Need::required, "model, Hugging Face config.json (gpt2)",
           run.model_path);
  add_text(command, "--data", "FILE", data_need,
           "training data: read as bytes, or as uint16 tokens when named .bin", run.data_path);
  add_option(command, "--init", "WEIGHTS", Need::optional,
             "start from these safetensors weights instead of random ones",
             [&run](const std::string& text) { run.init_path = text; });
  add_option(command, "--steps", "N", Need::optional,
             "train until step N, counted from the start also after --resume (default 1000)",
             [&run](const std::string& text) { run.steps = to_integer("--steps", text, 0); });
  add_option(command, "--seed", "N", Need::optional,
             "seed of weights, data order and dropout (default: the configuration's)",
             [&run](const std::string& text) { run.seed = to_unsigned("--seed", text); });
  add_flag(command, "--resume",
           "go on from the last committed step of this configuration's directory", run.resume);
  add_option(command, "--placement", "WHERE", Need::optional,
             "configured (default): tiers as in the configuration; resident: everything in device "
             "memory, without budgets and without touching the drive",
             [&run](const std::string& text) {
               if (text != "configured" && text != "resident") {
                 throw InvalidArgument("--placement: expected configured or resident, found \"" +
                                       text + "\"");
               }
               run.placement =
                   text == "resident" ? plan::Placement::resident : plan::Placement::configured;
             });
}

// $XDG_CACHE_HOME/sluice/rates.json, else ~/.cache/sluice/rates.json; empty without a home.
std::string default_rates_path() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/sluice/rates.json";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/sluice/rates.json" : "";
}

void add_rates_option(CLI::App& command, train::TrainRequest& run) {
  run.rates_path = default_rates_path();
  add_option(command, "--rates", "FILE", Need::optional,
             "where rates of machines are kept, which predictions are made from (default: "
             "~/.cache/sluice/rates.json)",
             [&run](const std::string& text) { run.rates_path = text; });
}

void add_evaluation_options(CLI::App& command, train::TrainRequest& run) {
  add_option(command, "--eval-data", "FILE", Need::optional, "evaluate on this file",
             [&run](const std::string& text) { run.eval_data_path = text; });
  add_option(command, "--eval-fraction", "F", Need::optional,
             "keep the last F of --data (between 0 and 1) out of training and evaluate on it",
             [&run](const std::string& text) {
               const double fraction = to_real("--eval-fraction", text);
               if (fraction <= 0 || fraction >= 1) {
                 throw InvalidArgument(
                     "--eval-fraction: expected a number between 0 and 1, found \"" + text + "\"");
               }
               run.eval_fraction = fraction;
             });
  add_option(
      command, "--eval-every", "N", Need::optional,
      "evaluate every N steps (default 0: after the last step)",
      [&run](const std::string& text) { run.eval_every = to_integer("--eval-every", text, 0); });
  add_option(
      command, "--eval-windows", "N", Need::optional,
      "sequences of one evaluation, spread evenly; 0 for all (default 64)",
      [&run](const std::string& text) { run.eval_windows = to_unsigned("--eval-windows", text); });
  add_option(command, "--report", "DIR", Need::optional,
             "write steps.jsonl and report.json into this directory",
             [&run](const std::string& text) { run.report_dir = text; });
}

// "7", or "5-10".
train::TrainRequest::Steps to_steps(const std::string& flag, const std::string& text) {
  const std::size_t dash = text.find('-');
  train::TrainRequest::Steps steps;
  steps.first = to_integer(flag, text.substr(0, dash), 1);
  steps.last = dash == std::string::npos ? steps.first : to_integer(flag, text.substr(dash + 1), 1);
  SLUICE_CHECK(steps.first <= steps.last, flag + ": \"" + text + "\" ends before it begins");
  return steps;
}

void add_trace_options(CLI::App& command, train::TrainRequest& run) {
  add_text(command, "--trace", "FILE", Need::optional,
           "write a timeline of the run, which ui.perfetto.dev and chrome://tracing open; sluice "
           "report shows a step of it",
           run.trace_path);
  add_option(
      command, "--trace-steps", "A-B", Need::optional,
      "the timeline has steps A to B only, or the one step A",
      [&run](const std::string& text) { run.trace_steps = to_steps("--trace-steps", text); });
}

// What is given together must fit together.
train::TrainRequest checked_run(Building& building) {
  train::TrainRequest& run = building.run;
  run.config_path = building.configs.front();
  run.tuned_paths.assign(building.configs.begin() + 1, building.configs.end());
  if (run.eval_data_path && run.eval_fraction) {
    throw InvalidArgument("--eval-data and --eval-fraction exclude each other; give one");
  }
  if (run.eval_every > 0 && !run.eval_data_path && !run.eval_fraction) {
    throw InvalidArgument(
        "--eval-every needs something to evaluate on: --eval-fraction or --eval-data");
  }
  SLUICE_CHECK(!run.trace_steps || !run.trace_path.empty(),
               "--trace-steps needs --trace, the file to write");
  if (run.eval_fraction && run.data_path.empty()) {
    throw InvalidArgument("--eval-fraction needs --data, which it divides");
  }
  return run;
}

void add_train(CLI::App& root, Building& building) {
  CLI::App& command =
      add_command(root, building, "train",
                  "train a model, its states on the tiers that the configuration names",
                  "sluice train --config ds.json --model config.json --data text.txt \\\n"
                  "      --steps 1000 --eval-fraction 0.05 --eval-every 100 --report run1");
  add_run_options(command, building, Need::required);
  add_evaluation_options(command, building.run);
  add_rates_option(command, building.run);
  add_trace_options(command, building.run);
  command.parse_complete_callback([&building] {
    building.select = [&building] {
      building.invocation.command = TrainArguments{checked_run(building)};
    };
  });
}

// What the flags of train do where nothing is trained; as docs/cli.md has it.
void describe_for_plan(CLI::App& command) {
  const std::pair<const char*, const char*> texts[] = {
      {"--data", "training data: checked as training would check it"},
      {"--init", "safetensors weights: checked to be such a file"},
      {"--steps", "adds how much all N steps write to the drive"},
      {"--seed", "checked; changes no plan"},
      {"--resume", "changes no plan"},
      {"--placement",
       "configured (default): tiers as in the configuration; resident: plans for everything in "
       "device memory, without budgets"},
      {"--eval-data", "checked as training would check it"},
      {"--eval-fraction",
       "part of --data (between 0 and 1) kept for evaluation; checked: both parts must hold a "
       "sequence"},
      {"--eval-every", "checked; changes no plan"},
      {"--eval-windows", "checked; changes no plan"},
      {"--report", "nothing is written"},
      {"--trace", "nothing is written"},
      {"--trace-steps", "checked; changes no plan"}};
  for (const auto& [flag, text] : texts) command.get_option(flag)->description(text);
}

void add_plan(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "plan",
      "show where every byte of a run would live, and whether it fits; allocates nothing",
      "sluice plan --config ds.json --model config.json");
  add_run_options(command, building, Need::optional);
  add_evaluation_options(command, building.run);
  add_rates_option(command, building.run);
  add_trace_options(command, building.run);
  describe_for_plan(command);
  add_flag(command, "--probe",
           "measure the machine first, in less than a minute, and predict the seconds of a step; "
           "later plans and runs of this shape find the rates",
           building.plan.probe);
  add_flag(command, "--max", "plan for the most blocks of the model's shape that fit",
           building.plan.largest);
  command.parse_complete_callback([&building] {
    building.select = [&building] {
      building.plan.request = checked_run(building);
      building.invocation.command = building.plan;
    };
  });
}

void add_generate(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "generate", "continue a text with trained weights",
      "sluice generate --model config.json --weights weights.safetensors --prompt \"The \"");
  train::GenerateRequest& request = building.generate;
  add_text(command, "--model", "FILE", Need::required, "model, Hugging Face config.json (gpt2)",
           request.model_path);
  add_text(command, "--weights", "FILE|RUN", Need::required,
           "safetensors weights, or the directory of a run (its last committed step)",
           request.weights_path);
  add_text(command, "--prompt", "TEXT", Need::required,
           "text to continue; its bytes are the tokens", request.prompt);
  add_option(command, "--max-new-tokens", "N", Need::optional, "tokens to generate (default 200)",
             [&request](const std::string& text) {
               request.max_new_tokens = to_integer("--max-new-tokens", text, 1);
             });
  add_option(
      command, "--temperature", "T", Need::optional,
      "0 takes the likeliest token; higher is more random (default 0.8)",
      [&request](const std::string& text) {
        request.temperature = to_real("--temperature", text);
        if (request.temperature < 0) {
          throw InvalidArgument("--temperature: expected at least 0, found \"" + text + "\"");
        }
      });
  add_option(
      command, "--top-k", "K", Need::optional,
      "draw from the K likeliest tokens; 0 for all (default 0)",
      [&request](const std::string& text) { request.top_k = to_integer("--top-k", text, 0); });
  add_option(command, "--seed", "N", Need::optional, "seed of the draw (default 0)",
             [&request](const std::string& text) { request.seed = to_unsigned("--seed", text); });
  command.parse_complete_callback([&building] {
    building.select = [&building] {
      building.invocation.command = GenerateArguments{building.generate};
    };
  });
}

void add_export(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "export", "write a run's weights as safetensors, in Hugging Face naming",
      "sluice export /mnt/nvme/swap --out weights.safetensors --dtype bf16");
  ExportArguments& arguments = building.export_arguments;
  add_text(command, "DIR", "DIR", Need::required, "swap directory of the run, or a checkpoint",
           arguments.run_directory);
  add_text(command, "--out", "FILE", Need::required, "file to write; replaced when complete",
           arguments.out_path);
  add_option(
      command, "--dtype", "TYPE", Need::optional, "fp32 (default), bf16 or fp16",
      [&arguments](const std::string& text) {
        try {
          arguments.dtype = parse_dtype(text);
        } catch (const InvalidArgument&) {
          throw InvalidArgument("--dtype: expected fp32, bf16 or fp16, found \"" + text + "\"");
        }
      });
  command.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = building.export_arguments; };
  });
}

void add_report(CLI::App& root, Building& building) {
  CLI::App& command =
      add_command(root, building, "report",
                  "turn what a run wrote into one page: loss, speed, memory, links, a timeline",
                  "sluice report run1 --out run1.html");
  ReportArguments& arguments = building.report;
  add_text(command, "DIR", "DIR", Need::required, "directory that train --report was given",
           arguments.directory);
  add_text(command, "--out", "FILE", Need::optional, "page to write (default DIR/report.html)",
           arguments.out_path);
  add_text(command, "--trace", "FILE", Need::optional,
           "trace of the run, as train --trace wrote it (default DIR/trace.json, if it is there)",
           arguments.trace_path);
  add_option(
      command, "--step", "N", Need::optional,
      "step of the trace that is shown (default: one of median duration)",
      [&arguments](const std::string& text) { arguments.step = to_integer("--step", text, 1); });
  command.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = building.report; };
  });
}

void add_doctor(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "doctor",
      "show what this machine and this build offer, each on or off and why", "sluice doctor");
  command.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = DoctorArguments{}; };
  });
}

void add_config(CLI::App& root, Building& building) {
  CLI::App& config =
      *root.add_subcommand("config", "check a training configuration; list its keys");
  config.set_help_flag("-h,--help", "this text");
  config.footer("sluice config check ds.json");
  config.require_subcommand(1);
  CLI::App& check = add_command(
      config, building, "check",
      "check a training configuration and show what it resolves to; all mistakes at once",
      "sluice config check ds.json");
  CLI::Option* files = check.add_option(
      "FILE", building.check.paths,
      "training configuration, DeepSpeed JSON; then files whose keys of \"aio\" and \"sluice\" "
      "replace those before");
  files->type_name("FILE...");
  files->required();
  check.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = building.check; };
  });
  CLI::App& keys = add_command(
      config, building, "keys",
      "list every key of the configuration and of the model file, with what becomes of it",
      "sluice config keys");
  keys.parse_complete_callback([&building] {
    building.select = [&building] { building.invocation.command = ConfigKeysArguments{}; };
  });
}

std::unique_ptr<CLI::App> make_root(Building& building) {
  auto root = std::make_unique<CLI::App>("trains models whose states do not fit in device memory",
                                         "sluice");
  root->set_help_flag("-h,--help", "this text");
  root->set_version_flag("--version", version_text(), "version of this program");
  root->footer("sluice train --config ds.json --model config.json --data text.txt --steps 1000");
  root->require_subcommand(1);
  add_train(*root, building);
  add_generate(*root, building);
  add_export(*root, building);
  add_plan(*root, building);
  add_report(*root, building);
  add_doctor(*root, building);
  add_config(*root, building);
  add_nvme(*root, building);
  return root;
}

}  // namespace

CLI::App& add_command(CLI::App& parent, Building& building, const std::string& name,
                      const std::string& description, const std::string& example) {
  CLI::App& command = *parent.add_subcommand(name, description);
  command.set_help_flag("-h,--help", "this text");
  command.footer(example);
  add_flag(command, "--json",
           "one JSON object on the last line of standard output; text goes to standard error",
           building.invocation.json);
  return command;
}

namespace {

// "help COMMAND" as "COMMAND --help".
std::vector<std::string> without_help_command(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

// What the program itself does not know. It has no --json of its own, but its help is asked for
// with it too, by scripts that add it to every line.
std::vector<std::string> unknown_arguments(const CLI::App& root) {
  std::vector<std::string> unknown = root.remaining(true);
  std::erase(unknown, "--json");
  return unknown;
}

}  // namespace

Invocation parse_arguments(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = without_help_command(given);
  Building building;
  const std::unique_ptr<CLI::App> root = make_root(building);
  if (arguments.empty()) return {ShowText{help_text(*root)}, false};
  try {
    root->parse(std::vector<std::string>(arguments.rbegin(),
                                         arguments.rend()));  // CLI11 takes from the back
    building.select();
  } catch (const CLI::CallForHelp& help) {
    // Of a command that does not exist there is none.
    if (!unknown_arguments(*root).empty()) throw InvalidArgument(usage_message(*root, help));
    return {ShowText{help_text(named_command(*root))}, false};
  } catch (const CLI::CallForVersion&) {
    return {ShowText{version_text() + "\n"}, false};
  } catch (const CLI::ParseError& error) {
    throw InvalidArgument(usage_message(*root, error));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(in_command(named_command(*root), error.what()));
  }
  return building.invocation;
}

}  // namespace sluice::cli
