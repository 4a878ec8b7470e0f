// train: checks the files, loads LibTorch, trains, and shows how to continue.

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command/commands.hpp"
#include "config/training_config.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "process/exit_code.hpp"
#include "process/signals.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/error_of.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/json/json_reader.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/log.hpp"
#include "sluice/base/trace.hpp"
#include "sluice/config/model_config.hpp"
#include "sluice/offload/checkpoint_folder.hpp"
#include "terminal/clock.hpp"
#include "terminal/text_format.hpp"
#include "train/progress.hpp"
#include "train/resume_line.hpp"
#include "train/run_files.hpp"
#include "train/train_library_loader.hpp"
#include "train/train_summary.hpp"

namespace sluice::cli {

namespace {

// The report is written last, so its path is checked first.
void check_report(const std::string& directory) {
  const std::string path = directory + "/report.json";
  if (directory.empty()) return;
  SLUICE_CHECK(!std::filesystem::is_directory(path),
               "--report: " + path + ": this is a directory, expected a file");
  const std::string checkpoint = offload::checkpoint_around(directory);
  SLUICE_CHECK(checkpoint.empty(),
               "--report: " + directory + ": lies in a checkpoint (" + checkpoint +
                   "), which a run removes when newer ones are there; give another directory");
}

// Checks that the trace can be written.
void check_trace(const train::TrainRequest& run) {
  if (run.trace_path.empty()) return;
  check_trace_path(run.trace_path);
  namespace fs = std::filesystem;
  const fs::path path(run.trace_path);
  const auto as_folder = [](const fs::path& folder) { return (folder / "").lexically_normal(); };
  if (!run.report_dir.empty() && as_folder(path.parent_path()) == as_folder(run.report_dir)) {
    SLUICE_CHECK(path.filename() != "steps.jsonl" && path.filename() != "report.json",
                 "--trace: " + run.trace_path + ": this is a file that --report writes");
    // Training creates this folder for the report.
    if (!fs::exists(run.report_dir)) return;
  }
  check_writable("--trace", run.trace_path, {});
}

train::RankPlace place_of(const LaunchEnvironment& launch) {
  return {.rank = launch.rank,
          .size = launch.world_size,
          .local_rank = launch.local_rank,
          .local_size = launch.local_size,
          .launcher = launch.launcher};
}

void show_resume_line(const train::RunReport& report, const std::string& lines, Session& session) {
  const std::string what =
      report.committed_step > 0
          ? "step " + std::to_string(report.committed_step) + " is committed; to go on:"
          : "nothing is committed; the next run starts over:";
  session.console().print("\n" + what + "\n" + lines);
}

void show_end(const TrainArguments& arguments, const TrainProgress& progress,
              const train::RunReport& report, Session& session) {
  Console& console = session.console();
  if (const std::string curve = progress.loss_curve(); !curve.empty()) console.print("\n" + curve);
  console.print("\n" + run_summary(report));
  if (const std::string& directory = arguments.request.report_dir; !directory.empty()) {
    console.print("report:   " + directory + "/report.json, one line per step in " + directory +
                  "/steps.jsonl; as a page:\n  " +
                  shell_line({session.argv().front(), "report", directory}));
  }
  // On a full disk the file is empty, which was a warning.
  const std::string& trace = arguments.request.trace_path;
  std::error_code missing;
  if (!trace.empty() && std::filesystem::file_size(trace, missing) > 0 && !missing)
    console.print("trace:    " + trace + ", for ui.perfetto.dev or chrome://tracing");
  if (progress.plan())
    console.print(
        next_steps(session.argv().front(), report, *progress.plan(), arguments.request.model_path));
}

// Steps remain: a stop waits for the one in progress.
void begin_steps(StopSignals& signals, std::int64_t first_step, std::int64_t total_steps) {
  if (first_step <= total_steps) signals.begin_steps();
}

// A warning for a run that was to resume and starts over, from the report of the run before; empty
// where that committed nothing.
std::string lost_run(const train::TrainRequest& request) {
  const std::string path = request.report_dir + "/report.json";
  if (!request.resume || request.report_dir.empty() || !is_file(path)) return "";
  std::int64_t committed = 0;
  (void)error_of([&] {  // a damaged report tells nothing
    committed = parse_json(read_regular_file(path, 64 * kMiB)).value()["committed_step"].asInt64();
  });
  if (committed < 1) return "";
  return "--resume: " + path + " is of a run that committed step " + std::to_string(committed) +
         ", and no directory of this configuration has its state, so this run begins at step 1; to "
         "go on from that step, give the configuration of that run (\"command\" in the report)";
}

class ProgressOfRun final : public TrainProgress {
 public:
  ProgressOfRun(Session& session, StopSignals& signals, const train::TrainRequest& request)
      : TrainProgress(session.console(), system_clock()),
        signals_(signals),
        lost_run_(lost_run(request)) {}
  void on_begin(std::int64_t first_step, std::int64_t total_steps) override {
    begin_steps(signals_, first_step, total_steps);
    if (first_step == 1 && !lost_run_.empty()) log(LogLevel::warn, lost_run_);
    TrainProgress::on_begin(first_step, total_steps);
  }

 private:
  StopSignals& signals_;
  std::string lost_run_;
};

// Rank 0 shows the run.
class NoProgress final : public train::TrainObserver {
 public:
  explicit NoProgress(StopSignals& signals) : signals_(signals) {}

 private:
  void on_start(const std::string& /*work*/, double /*done*/) override {}
  void on_plan(const plan::Plan& /*plan*/) override {}
  void on_choices(const std::vector<std::string>& /*choices*/) override {}
  void on_begin(std::int64_t first_step, std::int64_t total_steps) override {
    begin_steps(signals_, first_step, total_steps);
  }
  void on_step(const train::StepRecord& /*record*/) override {}
  void on_eval_progress(std::uint64_t /*done*/, std::uint64_t /*total*/) override {}

  StopSignals& signals_;
};

int exit_code_of_run(const train::RunReport& report) {
  if (report.missed_checkpoints > 0) return kExitStorage;  // the summary says which
  return report.stopped_by_signal == 0 ? kExitDone : exit_code_of_signal(report.stopped_by_signal);
}

// Trains as one of several ranks that is not rank 0. Shows warnings and errors only. Rank 0 checks
// the request before all ranks join; what is wrong on this rank only, training finds.
int run_further_rank(train::TrainRequest request, Session& session) {
  StopSignals signals;
  const LogSink sink = [inner = session.console().make_log_sink(),
                        name = "rank " + std::to_string(request.place.rank) + ": "](
                           LogLevel level, std::string_view message) {
    if (level == LogLevel::error || level == LogLevel::warn)
      inner(level, name + std::string(message));
  };
  set_log_sink(nullptr);
  set_steps_of_epochs(request);
  set_log_sink(sink);
  train::TrainLibrary& library = load_train_library();
  library.set_log_sink(sink, LogLevel::warn);
  NoProgress progress(signals);
  return exit_code_of_run(library.train(request, progress, signals.stop()));
}

}  // namespace

int run_train(const TrainArguments& arguments, Session& session) {
  const train::RankPlace place = place_of(launch_environment());
  if (place.rank > 0) {
    train::TrainRequest request = arguments.request;
    request.place = place;
    return run_further_rank(std::move(request), session);
  }
  train::TrainRequest request = arguments.request;
  request.place = place;
  // First of all, so that a signal during the start ends the run as one at a step does.
  const std::string lines = resume_lines(session.argv(), request);
  StopSignals signals("\nsluice: stopped at once; to go on from the last committed step:\n" +
                      lines + "\n");
  request.command_line = valid_utf8(shell_line(session.argv()));
  require_files(request);
  require_rates(request);
  // The library opens the data again, and says then what it reads.
  set_log_sink(nullptr);
  set_steps_of_epochs(request);
  set_log_sink(session.console().make_log_sink());
  check_report(request.report_dir);
  check_trace(request);
  // Read here as well, so that mistakes show before LibTorch is loaded. A pipe is not read here,
  // because it can be read only once.
  if (is_file(request.config_path) && std::ranges::all_of(request.tuned_paths, is_file)) {
    const config::TrainConfig config =
        load_training_config(request.config_path, {.world_size = place.size,
                                                   .tuned_paths = request.tuned_paths,
                                                   .settings = request.settings});
    if (const std::string& file = config.monitors.flops_profiler.output_file; !file.empty())
      check_writable("flops_profiler.output_file", file, request.data_paths);
  }
  if (is_file(request.model_path)) config::load_model_config(request.model_path);

  train::TrainLibrary& library = load_train_library();
  library.set_log_sink(session.console().make_log_sink(), LogLevel::info);
  ProgressOfRun progress(session, signals, request);
  try {
    const train::RunReport report = library.train(request, progress, signals.stop());
    session.console().status("");
    show_end(arguments, progress, report, session);
    session.emit_text(train::to_json(report));
    if (report.stopped_by_signal != 0) show_resume_line(report, lines, session);
    return exit_code_of_run(report);
  } catch (const Interrupted&) {
    session.console().print("\nstopped before the first step; to begin, or to go on:\n" + lines);
    throw;
  }
}

}  // namespace sluice::cli
