#include "command/parse_arguments.hpp"

#include <CLI/CLI.hpp>
#include <memory>

#include "command/command_builder.hpp"
#include "command/command_line.hpp"
#include "command/config_arguments.hpp"
#include "command/launch_arguments.hpp"
#include "command/nvme_arguments.hpp"
#include "command/run_arguments.hpp"
#include "command/version.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

void add_generate(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "generate", "continue a text with trained weights",
      "sluice generate --model config.json --weights weights.safetensors --prompt \"The \"");
  train::GenerateRequest& request = building.generate;
  add_text(command, "--model", "FILE", Need::required, "model, Hugging Face config.json (gpt2)",
           request.model_path);
  add_text(
      command, "--weights", "FILE|RUN", Need::required,
      "safetensors weights (a file, an index or a folder), or the directory of a run (its last "
      "committed step)",
      request.weights_path);
  add_text(command, "--prompt", "TEXT", Need::required,
           "text to continue; its bytes are the tokens, so it is for models trained on bytes",
           request.prompt);
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
  add_option(command, "--dtype", "TYPE", Need::optional,
             "fp32 (default), or bf16, in half of the memory", [&request](const std::string& text) {
               if (text != "fp32" && text != "bf16")
                 throw InvalidArgument("--dtype: expected fp32 or bf16, found \"" + text + "\"");
               request.dtype = parse_dtype(text);
             });
  when_named(command, building, [&building] { return GenerateArguments{building.generate}; });
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
  add_option(command, "--max-shard-size", "BYTES", Need::optional,
             "split into files of this size, such as 5GB, with an index (default: one file)",
             [&arguments](const std::string& text) {
               arguments.most_file_bytes = parse_bytes(text);
               SLUICE_CHECK(arguments.most_file_bytes > 0,
                            "--max-shard-size: expected at least one byte, found \"" + text + "\"");
             });
  when_named(command, building, [&building] { return building.export_arguments; });
}

void add_report(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "report",
      "turn the report directory of a run into one page: loss, speed, memory, links, a timeline",
      "sluice report run1 --out run1.html");
  ReportArguments& arguments = building.report;
  add_text(command, "DIR", "DIR", Need::required, "directory given to train --report",
           arguments.directory);
  add_text(command, "--out", "FILE", Need::optional, "page to write (default DIR/report.html)",
           arguments.out_path);
  add_text(command, "--trace", "FILE", Need::optional,
           "trace of the run, written by train --trace (default DIR/trace.json, if present)",
           arguments.trace_path);
  add_option(
      command, "--step", "N", Need::optional,
      "step of the trace that is shown (default: one of median duration)",
      [&arguments](const std::string& text) { arguments.step = to_integer("--step", text, 1); });
  when_named(command, building, [&building] { return building.report; });
}

void add_doctor(CLI::App& root, Building& building) {
  CLI::App& command = add_command(
      root, building, "doctor",
      "show what this machine and this build offer, each on or off and why", "sluice doctor");
  when_named(command, building, [] { return DoctorArguments{}; });
}

std::unique_ptr<CLI::App> make_root(Building& building) {
  auto root = std::make_unique<CLI::App>(
      "trains models that do not fit in memory; measures and tunes drives", "sluice");
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
  add_launch(*root, building);
  return root;
}

// "help COMMAND" as "COMMAND --help".
std::vector<std::string> without_help_command(std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
  return arguments;
}

// "launch [options] -- PROGRAM" without the separator, which other launchers have.
std::vector<std::string> without_separator(std::vector<std::string> arguments,
                                           const CLI::App& root) {
  if (arguments.empty() || arguments.front() != "launch") return arguments;
  const CLI::App& launch = *root.get_subcommand("launch");
  for (std::size_t i = 1; i < arguments.size() && arguments[i].starts_with('-'); ++i) {
    if (arguments[i] == "--") {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
      return arguments;
    }
    const CLI::Option* const option = launch.get_option_no_throw(arguments[i]);
    if (option != nullptr && option->get_expected_min() > 0) ++i;  // its value
  }
  return arguments;
}

// Arguments that the program itself does not know. --json is not counted: the program without a
// command has no such option, but scripts add --json to every line, also when they ask for help.
std::vector<std::string> unknown_arguments(const CLI::App& root) {
  std::vector<std::string> unknown = root.remaining(true);
  std::erase(unknown, "--json");
  return unknown;
}

void parse(CLI::App& root, const std::vector<std::string>& arguments) {
  try {
    root.parse(std::vector<std::string>(arguments.rbegin(),
                                        arguments.rend()));  // CLI11 takes from the back
  } catch (const CLI::ExtrasError&) {
    // CLI11 takes the flag behind "--name=" as the value, and that flag's value for an extra.
    check_values(root, arguments);
    throw;
  }
}

}  // namespace

Invocation parse_arguments(const std::vector<std::string>& given) {
  Building building;
  const std::unique_ptr<CLI::App> root = make_root(building);
  const std::vector<std::string> arguments = without_separator(without_help_command(given), *root);
  if (arguments.empty()) return {ShowText{help_text(*root)}, false};
  try {
    parse(*root, arguments);
    check_values(*root, arguments);
    building.select();
  } catch (const CLI::CallForHelp& help) {
    // An unknown command has no help text.
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
