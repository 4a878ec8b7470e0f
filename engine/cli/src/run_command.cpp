// The commands about a run: train and plan.

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "commands.hpp"
#include "exit_code.hpp"
#include "html_page.hpp"
#include "progress.hpp"
#include "signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/config/config_error.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/config/train_config.hpp"
#include "sluice/models/dataset.hpp"
#include "sluice/models/safetensors.hpp"
#include "sluice/plan/plan.hpp"
#include "sluice/plan/prediction.hpp"
#include "text_format.hpp"
#include "train_library_loader.hpp"
#include "train_summary.hpp"

namespace sluice::cli {

namespace {

config::TrainConfig load_config(const train::TrainRequest& run) {
  return load_training_config(run.config_path, run.tuned_paths);
}

// A key that every model file has, and no training configuration.
bool has_model_type(const config::ConfigError& error) {
  return std::ranges::any_of(error.problems(), [](const config::Problem& problem) {
    return problem.key_path == "model_type";
  });
}

// Empty when `path` can be read.
std::string why_unreadable(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return "there is no such file";
  if (std::filesystem::is_directory(status)) return "this is a directory, expected a file";
  return ::access(path.c_str(), R_OK) == 0 ? "" : "cannot be read (permissions?)";
}

// The report is written last; that it cannot be is said first.
void check_report(const std::string& directory) {
  const std::string path = directory + "/report.json";
  SLUICE_CHECK(directory.empty() || !std::filesystem::is_directory(path),
               "--report: " + path + ": this is a directory, expected a file");
}

// So is what cannot become a trace.
void check_trace(const train::TrainRequest& run) {
  if (run.trace_path.empty()) return;
  check_trace_path(run.trace_path);
  namespace fs = std::filesystem;
  const fs::path path(run.trace_path);
  const auto as_folder = [](const fs::path& folder) { return (folder / "").lexically_normal(); };
  if (!run.report_dir.empty() && as_folder(path.parent_path()) == as_folder(run.report_dir)) {
    SLUICE_CHECK(path.filename() != "steps.jsonl" && path.filename() != "report.json",
                 "--trace: " + run.trace_path + ": this is a file that --report writes");
    // The folder is made when the report is begun.
    if (!fs::exists(run.report_dir)) return;
  }
  check_writable("--trace", run.trace_path, {});
}

void require_files(const train::TrainRequest& run) {
  require_file("--config", run.config_path);
  for (const std::string& path : run.tuned_paths) require_file("--config", path);
  require_file("--model", run.model_path);
  if (!run.data_path.empty()) require_file("--data", run.data_path);
  if (run.init_path) require_file("--init", *run.init_path);
  if (run.eval_data_path) require_file("--eval-data", *run.eval_data_path);
}

// The line that goes on with this run: as it was called, and --resume.
std::string resume_line(std::vector<std::string> argv) {
  if (std::find(argv.begin(), argv.end(), "--resume") == argv.end()) argv.emplace_back("--resume");
  return shell_line(argv);
}

void show_resume_line(const train::RunReport& report, const std::string& line, Session& session) {
  const std::string what =
      report.committed_step > 0
          ? "step " + std::to_string(report.committed_step) + " is committed; to go on:"
          : "nothing is committed; the next run starts over:";
  session.console().print("\n" + what + "\n  " + line);
}

void show_end(const TrainArguments& arguments, const TrainProgress& progress,
              const train::RunReport& report, Session& session) {
  Console& console = session.console();
  if (const std::string curve = progress.loss_curve(); !curve.empty()) console.print("\n" + curve);
  console.print("\n" + run_summary(report));
  if (const std::string& directory = arguments.request.report_dir; !directory.empty()) {
    console.print(
        "report:   " + directory + "/report.json, one line per step in " + directory +
        "/steps.jsonl; as a page: " + shell_line({session.argv().front(), "report", directory}));
  }
  if (const std::string& trace = arguments.request.trace_path; !trace.empty())
    console.print("trace:    " + trace + ", for ui.perfetto.dev or chrome://tracing");
  if (progress.plan())
    console.print(
        next_steps(session.argv().front(), report, *progress.plan(), arguments.request.model_path));
}

// What of the data is wrong, the way training would find it.
void check_data(const train::TrainRequest& run, const config::ModelConfig& model) {
  const auto length = static_cast<std::uint64_t>(model.n_positions);
  const auto vocabulary = static_cast<std::uint64_t>(model.vocab_size);
  if (!run.data_path.empty()) {
    models::Dataset data(run.data_path, length, vocabulary);
    if (run.eval_fraction) data.hold_out(*run.eval_fraction);
  }
  if (run.eval_data_path) models::Dataset(*run.eval_data_path, length, vocabulary).evaluate_all();
  if (run.init_path) models::SafetensorsReader{*run.init_path};
}

// Of the model, or of the most blocks of its shape that fit. Throws DoesNotFit, with what is short,
// when it does not fit, or not even one block does.
plan::Plan plan_run(const PlanArguments& arguments, const config::TrainConfig& config,
                    config::ModelConfig model, const plan::FindRates& find_rates) {
  const plan::Placement placement = arguments.request.placement;
  const plan::MachineFacts machine = plan::probe_machine(config);
  if (arguments.largest) {
    if (auto plan = plan::largest_plan(config, model, placement, machine, find_rates))
      return std::move(*plan);
    model.n_layer = 1;
  }
  try {
    return plan::make_plan(config, model, placement, machine, find_rates);
  } catch (const DoesNotFit& refusal) {
    if (!arguments.largest) throw;
    throw DoesNotFit(std::string("one block of this shape (n_layer 1) is too many already: ") +
                     refusal.what());
  }
}

std::string largest_line(const config::ModelConfig& asked, const plan::Plan& plan) {
  return "the largest model of this shape that fits has " + std::to_string(plan.model.n_layer) +
         (plan.model.n_layer == 1 ? " block" : " blocks") + " (n_layer; the file has " +
         std::to_string(asked.n_layer) + ")";
}

// Measures what such a plan needs to know of the machine, and keeps it.
plan::SavedRates probe_rates(const PlanArguments& arguments, const plan::Plan& plan,
                             Session& session) {
  for (const std::string& directory : {plan.states_directory, plan.scratch_directory}) {
    if (!directory.empty() && !std::filesystem::is_directory(directory))
      throw IoError(ENOENT, "swap directory", directory, 0, 0,
                    "--probe measures its drive: create it first");
  }
  const StopSignals signals;
  plan::SavedRates saved;
  saved.rates = load_train_library().probe(
      plan,
      [&](const std::string& what, double done) {
        session.console().status("measuring " + what + " (" +
                                 std::to_string(static_cast<int>(100 * done)) + " %)");
      },
      signals.stop());
  session.console().status("");
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &parts);
  saved.measured = text;
  const std::string& path = arguments.request.rates_path;
  if (!path.empty()) plan::save_rates(path, plan::rates_key(plan), saved);
  return saved;
}

}  // namespace

void require_file(const std::string& path) {
  if (const std::string why = why_unreadable(path); !why.empty())
    throw InvalidArgument(path + ": " + why);
}

void require_file(const std::string& flag, const std::string& path) {
  if (const std::string why = why_unreadable(path); !why.empty())
    throw InvalidArgument(flag + ": " + path + ": " + why);
}

config::TrainConfig load_training_config(const std::string& path,
                                         const std::vector<std::string>& tuned_paths) {
  try {
    return config::load_train_config(path, {.tuned_paths = tuned_paths});
  } catch (const config::ConfigError& error) {
    if (!has_model_type(error)) throw;
    const std::string text = error.what();  // begins with the file's name
    throw InvalidArgument(text.substr(0, text.find(':')) +
                          ": this looks like a model's config.json (it has \"model_type\"), which "
                          "--model takes; expected a training configuration");
  }
}

int run_train(const TrainArguments& arguments, Session& session) {
  train::TrainRequest request = arguments.request;
  request.command_line = valid_utf8(shell_line(session.argv()));
  require_files(request);
  check_report(request.report_dir);
  check_trace(request);
  // Read here as well, so that mistakes show before LibTorch is loaded.
  // A pipe can be read only once.
  const auto is_file = [](const std::string& path) {
    return std::filesystem::is_regular_file(path);
  };
  if (is_file(request.config_path) && std::ranges::all_of(request.tuned_paths, is_file))
    load_config(request);
  if (std::filesystem::is_regular_file(request.model_path))
    config::load_model_config(request.model_path);

  train::TrainLibrary& library = load_train_library();
  library.set_log_sink(session.console().make_log_sink(), LogLevel::info);
  const std::string line = resume_line(session.argv());
  TrainProgress progress(session.console(), system_clock());
  const StopSignals signals(
      "the step in progress",
      "\nsluice: stopped at once; to go on from the last committed step:\n  " + line + "\n");
  try {
    const train::RunReport report = library.train(request, progress, signals.stop());
    session.console().status("");
    show_end(arguments, progress, report, session);
    session.emit_text(train::to_json(report));
    if (report.stopped_by_signal == 0) return kExitDone;
    show_resume_line(report, line, session);
    return exit_code_of_signal(report.stopped_by_signal);
  } catch (const Interrupted&) {
    show_resume_line(train::RunReport{}, line, session);
    throw;
  }
}

int run_plan(const PlanArguments& arguments, Session& session) {
  const train::TrainRequest& request = arguments.request;
  require_files(request);
  const config::TrainConfig config = load_config(request);
  const config::ModelConfig model = config::load_model_config(request.model_path);
  check_data(request, model);
  std::optional<plan::SavedRates> probed;
  std::string probed_key;
  if (arguments.probe) {
    if (!request.rates_path.empty()) plan::check_rates_path(request.rates_path);
    const plan::Plan usual = plan_run(arguments, config, model, {});
    probed = probe_rates(arguments, usual, session);
    probed_key = plan::rates_key(usual);
  }
  const auto rates_for = [&](const plan::Plan& plan) {
    const std::string key = plan::rates_key(plan);
    return probed && key == probed_key ? probed : plan::load_rates(request.rates_path, key);
  };
  const plan::Plan plan = plan_run(arguments, config, model, [&](const plan::Plan& candidate) {
    const std::optional<plan::SavedRates> saved = rates_for(candidate);
    return saved ? std::optional(saved->rates) : std::nullopt;
  });
  Console& console = session.console();
  if (arguments.largest) console.print(largest_line(model, plan));
  for (const std::string& note : config.notes) console.print(note);
  console.print(plan::plan_table(plan));
  for (const std::string& choice : plan.choices) console.print("chosen: " + choice);
  if (request.steps && plan.nvme_written_per_step > 0) {
    const std::uint64_t written =
        checked_mul(plan.nvme_written_per_step, static_cast<std::uint64_t>(*request.steps));
    console.print("all " + std::to_string(*request.steps) + " steps write " +
                  format_bytes(written) + " to the drive");
  }
  std::optional<plan::Prediction> prediction;
  if (const std::optional<plan::SavedRates> saved = rates_for(plan)) {
    prediction = plan::predict(plan, saved->rates);
    console.print("\n" + plan::prediction_text(*prediction, *saved));
  }
  session.emit_text(plan::plan_json(plan, prediction));
  return kExitDone;
}

}  // namespace sluice::cli
