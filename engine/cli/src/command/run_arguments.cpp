#include "command/run_arguments.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "command/command_line.hpp"
#include "command/config_arguments.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

// Options that identify the run. train and plan share them, so one line of options works for both.
void add_run_options(CLI::App& command, Building& building, Need need) {
  train::TrainRequest& run = building.run;
  add_files(command, "--config", need,
            "training configuration, DeepSpeed JSON; given again: a file whose keys of \"aio\" and "
            "\"sluice\" replace those before, as sluice nvme tune writes it",
            building.configs);
  add_text(command, "--model", "FILE", need, "model, Hugging Face config.json (gpt2)",
           run.model_path);
  add_files(command, "--data", need,
            "training data, a file or a folder: text read as bytes, uint16 tokens when named .bin, "
            "uint32 tokens when named .u32; may be given again",
            run.data_paths);
  add_option(
      command, "--init", "WEIGHTS", Need::optional,
      "start from these safetensors weights instead of random ones: a file, an index of several "
      "(*.index.json) or a folder with either",
      [&run](const std::string& text) { run.init_path = text; });
  add_option(command, "--steps", "N", Need::optional,
             "train until step N, counted from the start also after --resume (default 1000)",
             [&run](const std::string& text) { run.steps = to_integer("--steps", text, 0); });
  add_option(
      command, "--epochs", "N", Need::optional,
      "train N times over --data: every sequence once in an epoch, in an order drawn by the seed "
      "(default: windows are drawn with replacement, for --steps)",
      [&run](const std::string& text) { run.epochs = to_epochs(text); });
  add_setting_options(command, run.settings);
  add_option(command, "--seed", "N", Need::optional,
             "seed of weights, data order and dropout (default: the configuration's)",
             [&run](const std::string& text) { run.seed = to_unsigned("--seed", text); });
  add_flag(command, "--resume",
           "continue from the newest saved state: the last committed step, or a newer checkpoint",
           run.resume);
  add_option(command, "--wait", "SECONDS", Need::optional,
             "wait as long for another run that has these directories (default 0)",
             [&run](const std::string& text) { run.wait_seconds = to_integer("--wait", text, 0); });
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

void add_rates_option(CLI::App& command, train::TrainRequest& run) {
  run.rates_path = default_rates_path();
  add_option(
      command, "--rates", "FILE", Need::optional,
      "file with the rates of machines, used for predictions (default: ~/.cache/sluice/rates.json)",
      [&run](const std::string& text) { run.rates_path = text; });
}

void add_evaluation_options(CLI::App& command, train::TrainRequest& run) {
  add_option(command, "--eval-data", "FILE", Need::optional, "evaluate on this file",
             [&run](const std::string& text) { run.evaluation.data_path = text; });
  add_option(command, "--eval-fraction", "F", Need::optional,
             "hold out the last F of --data (between 0 and 1) from training, and evaluate on it",
             [&run](const std::string& text) {
               const double fraction = to_real("--eval-fraction", text);
               if (fraction <= 0 || fraction >= 1) {
                 throw InvalidArgument(
                     "--eval-fraction: expected a number between 0 and 1, found \"" + text + "\"");
               }
               run.evaluation.fraction = fraction;
             });
  add_option(command, "--eval-every", "N", Need::optional,
             "evaluate every N steps (default 0: after the last step)",
             [&run](const std::string& text) {
               run.evaluation.every = to_integer("--eval-every", text, 0);
             });
  add_option(command, "--eval-windows", "N", Need::optional,
             "sequences of one evaluation, spread evenly; 0 for all (default 64)",
             [&run](const std::string& text) {
               run.evaluation.windows = to_unsigned("--eval-windows", text);
             });
  add_text(command, "--report", "DIR", Need::optional,
           "write steps.jsonl and report.json into this directory", run.report_dir);
}

// "7", or "5-10".
train::TrainRequest::Steps to_trace_steps(const std::string& text) {
  const std::string flag = "--trace-steps";
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
  add_option(command, "--trace-steps", "A-B", Need::optional,
             "the timeline has steps A to B only, or the one step A",
             [&run](const std::string& text) { run.trace_steps = to_trace_steps(text); });
}

// Checks that the options fit together.
train::TrainRequest checked_run(Building& building) {
  train::TrainRequest& run = building.run;
  if (!building.configs.empty()) {
    run.config_path = building.configs.front();
    run.tuned_paths.assign(building.configs.begin() + 1, building.configs.end());
  }
  if (run.steps) run.settings.push_back(setting_of_steps(std::max<std::int64_t>(*run.steps, 1)));
  if (run.evaluation.data_path && run.evaluation.fraction) {
    throw InvalidArgument("--eval-data and --eval-fraction exclude each other; give one");
  }
  if (run.evaluation.every > 0 && !run.evaluation.data_path && !run.evaluation.fraction) {
    throw InvalidArgument(
        "--eval-every needs something to evaluate on: --eval-fraction or --eval-data");
  }
  SLUICE_CHECK(!run.trace_steps || !run.trace_path.empty(),
               "--trace-steps needs --trace, the file to write");
  if (run.evaluation.fraction && run.data_paths.empty()) {
    throw InvalidArgument("--eval-fraction needs --data, which it divides");
  }
  SLUICE_CHECK(!run.epochs || !run.data_paths.empty(), "--epochs needs --data, which it reads");
  return run;
}

// The plan of one run needs what train needs.
void check_files(const train::TrainRequest& run) {
  std::string missing = run.config_path.empty() ? "--config FILE" : "";
  if (run.model_path.empty())
    missing += (missing.empty() ? "" : ", ") + std::string("--model FILE");
  SLUICE_CHECK(missing.empty(), "missing " + missing + " (sluice plan --help lists what there is)");
}

// Describes the flags of train for plan, which trains nothing; docs/cli.md has the same table.
void describe_for_plan(CLI::App& command) {
  const std::pair<const char*, const char*> texts[] = {
      {"--data", "training data: files and lengths are checked, tokens only by training"},
      {"--epochs", "as --steps, for the steps of N epochs; needs --data"},
      {"--init", "checked to be safetensors weights"},
      {"--steps", "adds how much all N steps write to the drive"},
      {"--seed", "checked; changes no plan"},
      {"--resume",
       "plans with the formats and passes of the state that train would go on from; it is read, "
       "not changed"},
      {"--wait", "changes no plan"},
      {"--placement",
       "configured (default): tiers as in the configuration; resident: plans for everything in "
       "device memory, without budgets"},
      {"--eval-data", "files and lengths are checked, tokens only by training"},
      {"--eval-fraction",
       "part of --data (between 0 and 1) held out for evaluation; checked: both parts must hold a "
       "sequence"},
      {"--eval-every", "checked; changes no plan"},
      {"--eval-windows", "checked; changes no plan"},
      {"--report", "nothing is written"},
      {"--trace", "nothing is written"},
      {"--trace-steps", "checked; changes no plan"}};
  for (const auto& [flag, text] : texts) command.get_option(flag)->description(text);
}

}  // namespace

std::string default_rates_path() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/sluice/rates.json";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/sluice/rates.json" : "";
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
  when_named(command, building, [&building] { return TrainArguments{checked_run(building)}; });
}

void add_plan(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "plan",
      "show where every byte of a run would live, and whether it fits; allocates nothing",
      "sluice plan --config ds.json --model config.json\n"
      "  sluice plan --ranks 8,64,512 --network 50GB/s --drives 4 --parameters 70B");
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
  add_ranks_options(command, building.plan.ranks);
  when_named(command, building, [&building, &command] {
    check_ranks(command, building.plan, building.run.model_path);
    building.plan.request = checked_run(building);
    if (building.plan.ranks.ranks.empty()) check_files(building.plan.request);
    return building.plan;
  });
}

}  // namespace sluice::cli
