// report: makes a page from the --report directory of a run.

#include <filesystem>
#include <string>
#include <vector>

#include "command/commands.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "page/html_page.hpp"
#include "process/exit_code.hpp"
#include "report/run_page.hpp"
#include "sluice/base/bytes.hpp"
#include "sluice/base/error.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void check_directory(const std::string& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  SLUICE_CHECK(status.type() != fs::file_type::not_found,
               directory + ": there is no such directory");
  if (error) throw IoError(error.value(), "open", directory);
  SLUICE_CHECK(fs::is_directory(status),
               directory + ": expected the directory that sluice train --report was given");
}

void read_trace(RunRecord& run, const ReportArguments& arguments) {
  run.trace_path = arguments.trace_path;
  if (run.trace_path.empty() && is_there(run.directory + "/trace.json"))
    run.trace_path = run.directory + "/trace.json";
  if (run.trace_path.empty()) {
    SLUICE_CHECK(!arguments.step,
                 "--step needs a trace: --trace FILE, or trace.json in " + run.directory);
    return;
  }
  run.traced = read_traced_step(run.trace_path, arguments.step);
  SLUICE_CHECK(run.traced || !arguments.step, run.trace_path + ": has no whole step " +
                                                  std::to_string(arguments.step.value_or(0)));
}

RunRecord read_run(const ReportArguments& arguments) {
  RunRecord run;
  run.directory = arguments.directory;
  check_directory(run.directory);
  const std::string steps = run.directory + "/steps.jsonl";
  const std::string report = run.directory + "/report.json";
  SLUICE_CHECK(is_there(steps) || is_there(report),
               run.directory +
                   ": there is no steps.jsonl and no report.json: sluice train "
                   "--report " +
                   shell_quote(run.directory) + " writes them");
  if (is_there(report)) run.report = read_report(report);
  if (run.report.isObject() && run.report["last_step"].isInt() && run.report["steps"].isInt())
    run.resumed_after = run.report["last_step"].asInt() - run.report["steps"].asInt();
  if (is_there(steps)) run.steps = read_steps(steps, run.resumed_after + 1);
  SLUICE_CHECK(run.steps.count > 0 || !run.report.isNull(),
               steps + ": no step of the run has ended yet");
  read_trace(run, arguments);
  return run;
}

Json::Value to_json(const RunRecord& run, const std::string& out, std::size_t page_bytes) {
  const auto number = [](const std::optional<double>& value) {
    return value ? Json::Value(*value) : Json::Value();
  };
  Json::Value object(Json::objectValue);
  object["out"] = valid_utf8(out);
  object["page_bytes"] = Json::UInt64(page_bytes);
  object["steps"] = Json::UInt64(run.steps.count);
  object["last_step"] = Json::Int64(run.steps.last_step);
  object["missing_steps"] = Json::UInt64(run.steps.missing);
  object["loss"] = number(run.steps.last_loss);
  object["eval_loss"] = number(run.steps.last_eval_loss);
  object["tokens_per_second"] = number(
      run.steps.seconds > 0 ? std::optional(run.steps.tokens / run.steps.seconds) : std::nullopt);
  object["skipped"] = Json::UInt64(run.steps.skipped);
  object["has_report"] = !run.report.isNull();
  object["trace"] =
      run.trace_path.empty() ? Json::Value() : Json::Value(valid_utf8(run.trace_path));
  object["traced_step"] = run.traced ? Json::Value(Json::Int64(run.traced->step)) : Json::Value();
  return object;
}

}  // namespace

int run_report(const ReportArguments& arguments, Session& session) {
  if (!arguments.trace_path.empty()) require_file("--trace", arguments.trace_path);
  const RunRecord run = read_run(arguments);
  const std::string out =
      arguments.out_path.empty() ? run.directory + "/report.html" : arguments.out_path;
  std::vector<std::string> inputs = {run.directory + "/steps.jsonl",
                                     run.directory + "/report.json"};
  if (!run.trace_path.empty()) inputs.push_back(run.trace_path);
  const std::string flag = arguments.out_path.empty() ? "the default of --out" : "--out";
  check_page_path(flag, out, inputs, "one of the files that are read");
  const std::string page = run_page(run);
  write_file(out, page);
  session.console().print("page: " + out + ", " + format_bytes(page.size()));
  session.emit(to_json(run, out, page.size()));
  return kExitDone;
}

}  // namespace sluice::cli
