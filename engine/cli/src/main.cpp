// The program `sluice`. Links no LibTorch: train and generate load it when they run
// (train_library_loader.hpp).

#include <fcntl.h>
#include <json/value.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include "command/commands.hpp"
#include "command/parse_arguments.hpp"
#include "command/session.hpp"
#include "process/exit_code.hpp"
#include "process/file_limit.hpp"
#include "process/memory_settings.hpp"
#include "process/signals.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/launch_environment.hpp"
#include "sluice/base/log.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

// Runs the command of an Invocation; one overload for each.
struct Run {
  Session& session;

  int operator()(const ShowText& show) const {
    session.console().print(show.text);
    return kExitDone;
  }
  int operator()(const TrainArguments& arguments) const { return run_train(arguments, session); }
  int operator()(const PlanArguments& arguments) const { return run_plan(arguments, session); }
  int operator()(const GenerateArguments& arguments) const {
    return run_generate(arguments, session);
  }
  int operator()(const ExportArguments& arguments) const { return run_export(arguments, session); }
  int operator()(const ReportArguments& arguments) const { return run_report(arguments, session); }
  int operator()(const DoctorArguments&) const { return run_doctor(session); }
  int operator()(const ConfigCheckArguments& arguments) const {
    return run_config_check(arguments, session);
  }
  int operator()(const ConfigKeysArguments&) const { return run_config_keys(session); }
  int operator()(const ConfigRatesArguments& arguments) const {
    return run_config_rates(arguments, session);
  }
  int operator()(const ConfigResolveArguments& arguments) const {
    return run_config_resolve(arguments, session);
  }
  int operator()(const ConfigExplainArguments& arguments) const {
    return run_config_explain(arguments, session);
  }
  int operator()(const ConfigSchemaArguments&) const { return run_config_schema(session); }
  int operator()(const ConfigConvertArguments& arguments) const {
    return run_config_convert(arguments, session);
  }
  int operator()(const NvmeBenchArguments& arguments) const {
    return run_nvme_bench(arguments, session);
  }
  int operator()(const NvmeTuneArguments& arguments) const {
    return run_nvme_tune(arguments, session);
  }
  int operator()(const NvmeVerifyArguments& arguments) const {
    return run_nvme_verify(arguments, session);
  }
  int operator()(const NvmeCleanArguments& arguments) const {
    return run_nvme_clean(arguments, session);
  }
  int operator()(const LaunchArguments& arguments) const { return run_launch(arguments, session); }
};

int run(const std::vector<std::string>& argv) {
  const Invocation invocation = parse_arguments({argv.begin() + 1, argv.end()});
  Session session(argv, invocation.json);
  set_log_sink(session.console().make_log_sink());
  // The sink points into the session, so the guard removes the sink first.
  struct SinkGuard {
    ~SinkGuard() { set_log_sink(nullptr); }
  } guard;
  const int code = std::visit(Run{session}, invocation.command);
  // The command's result went to standard output; a failed write there fails the command.
  if (code != kExitDone) return code;
  const bool is_whole = std::ferror(stdout) == 0;
  if (!is_whole) std::fputc('\n', stdout);  // the flush then fails again and sets errno
  if (std::fflush(stdout) != 0) {
    // Where a command handles the signal itself; in all others it has ended the process.
    if (errno == EPIPE) return exit_code_of_signal(SIGPIPE);
    throw IoError(errno, "write", "standard output");
  }
  if (!is_whole) throw IoError(EIO, "write", "standard output");
  return code;
}

// The place among several ranks; 0 and an empty name with one rank.
struct RankName {
  int rank = 0;
  std::string name;
};
RankName rank_name() {
  try {
    const LaunchEnvironment launch = launch_environment();
    if (launch.world_size == 1) return {};
    return {launch.rank, "rank " + std::to_string(launch.rank) + ": "};
  } catch (const InvalidArgument&) {
    return {};  // the message is about that
  }
}

// mpirun kills all ranks when the first one ends, and a launcher blames that one. So the rank at
// fault ends first: it shows its error meanwhile, and the signal that follows ends this wait.
void let_rank_at_fault_end() {
  constexpr int kMostMilliseconds = 2000;
  ::poll(nullptr, 0, kMostMilliseconds);
}

int report_failure(const std::exception_ptr& error, bool json) {
  Failure failure = classify(error);
  failure.message = printable(failure.message);
  const RankName rank = rank_name();
  if (!failure.shown_by_another_rank) {
    std::fprintf(stderr, "%s%s\n",
                 failure.begins_with_place ? "" : ("sluice: " + rank.name).c_str(),
                 failure.message.c_str());
  }
  if (json && rank.rank == 0) {
    Json::Value object(Json::objectValue);
    object["error"] = failure.message;
    object["exit_code"] = failure.exit_code;
    std::printf("%s\n", to_line(object).c_str());
  }
  if (failure.shown_by_another_rank) {
    std::fflush(stdout);
    let_rank_at_fault_end();
  }
  return failure.exit_code;
}

// Opens closed standard streams on /dev/null. Otherwise the next opened file would take the
// stream's number and receive the program's output.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is `fd`.
    [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
  }
}

}  // namespace

}  // namespace sluice::cli

int main(int argc, char** argv) {
  sluice::cli::open_standard_streams();
  sluice::cli::bound_resident_memory();
  sluice::cli::ignore_file_size_signal();
  sluice::cli::raise_file_limit();
  std::vector<std::string> arguments(argv, argv + argc);
  if (arguments.empty()) arguments.emplace_back("sluice");  // execve with no arguments at all
  // Searched without parsing, because a usage error is reported as JSON too.
  const bool json = std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
  try {
    return sluice::cli::run(arguments);
  } catch (...) {
    return sluice::cli::report_failure(std::current_exception(), json);
  }
}
