// launch: starts the ranks of a run on this host, or shows how several hosts start them.

#include <json/value.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>

#include "command/commands.hpp"
#include "launch/host_lines.hpp"
#include "launch/host_list.hpp"
#include "launch/local_launch.hpp"
#include "launch/mpi_rank.hpp"
#include "launch/program.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/file/paths.hpp"
#include "sluice/base/host_name.hpp"
#include "terminal/text_format.hpp"
#include "train/resume_line.hpp"

namespace sluice::cli {

namespace {

constexpr std::uint64_t kMostHostfileBytes = 16U << 20U;

// GPUs that this process may use: those of CUDA_VISIBLE_DEVICES, else the devices of the driver.
unsigned count_gpus() {
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    return static_cast<unsigned>(visible_gpus(visible).size());
  return count_gpu_files("/dev");
}

unsigned slurm_nodes() {
  const char* const nodes = std::getenv("SLURM_JOB_NUM_NODES");
  return nodes == nullptr ? 0 : static_cast<unsigned>(std::strtoul(nodes, nullptr, 10));
}

Host make_host(const std::string& name, unsigned slots) {
  Host host{name, std::vector<int>(slots)};
  std::iota(host.slots.begin(), host.slots.end(), 0);
  return host;
}

std::string read_hostfile(const std::string& path) {
  try {
    return read_regular_file(path, kMostHostfileBytes);
  } catch (const std::runtime_error& error) {  // an argument that is wrong, not a drive
    throw InvalidArgument("--hostfile: " + std::string(error.what()));
  }
}

// The hosts of the run; those of a Slurm job have no names.
std::vector<Host> find_hosts(const LaunchArguments& arguments) {
  const bool is_filtered = !arguments.include.empty() || !arguments.exclude.empty();
  SLUICE_CHECK(!is_filtered || (arguments.num_gpus == 0 && arguments.num_nodes == 0),
               "--include and --exclude name the hosts and GPUs: give no --num-gpus and no "
               "--num-nodes");
  if (!arguments.hostfile.empty()) {
    const std::string text = read_hostfile(arguments.hostfile);
    const std::vector<Host> hosts = filter_hosts(parse_hostfile(text, arguments.hostfile),
                                                 arguments.include, arguments.exclude);
    return first_of(hosts, arguments.num_nodes, arguments.num_gpus);
  }
  const unsigned nodes = arguments.num_nodes > 0 ? arguments.num_nodes : slurm_nodes();
  if (nodes > 1 || arguments.how == LaunchHow::srun) {
    SLUICE_CHECK(slurm_nodes() > 0 || arguments.how == LaunchHow::srun,
                 "--num-nodes " + std::to_string(nodes) + " needs --hostfile, or a Slurm job");
    SLUICE_CHECK(arguments.num_gpus > 0, "srun needs --num-gpus, the ranks on each host");
    SLUICE_CHECK(!is_filtered, "--include and --exclude need --hostfile on several hosts");
    return {std::max(nodes, 1U), make_host("", arguments.num_gpus)};
  }
  const unsigned gpus = count_gpus();
  SLUICE_CHECK(!is_filtered || gpus > 0,
               "--include and --exclude choose GPUs, and this host has none; --num-gpus starts "
               "processes without GPUs");
  const unsigned slots = arguments.num_gpus > 0 ? arguments.num_gpus : std::max(gpus, 1U);
  return filter_hosts({make_host("localhost", slots)}, arguments.include, arguments.exclude);
}

bool is_this_host(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1" || name == host_name();
}

// auto: MPI joins the ranks of `sluice train`; other programs get torchrun's variables.
LaunchHow choose_how(const LaunchArguments& arguments, const std::vector<Host>& hosts) {
  if (arguments.how != LaunchHow::automatic) return arguments.how;
  if (hosts.front().name.empty()) return LaunchHow::srun;
  return is_sluice_train(arguments) ? LaunchHow::mpirun : LaunchHow::torchrun;
}

void say(const std::string& line) {
  const std::string whole = "sluice launch: " + line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, whole.data(), whole.size());
}

Json::Value strings(const std::vector<std::string>& texts) {
  Json::Value list(Json::arrayValue);
  for (const std::string& text : texts) list.append(text);
  return list;
}

void say_failure(const FailedRank& failed, int ranks) {
  const std::string who =
      failed.rank < 0 ? "the ranks: the line"
                      : "rank " + std::to_string(failed.rank) + " of " + std::to_string(ranks);
  const bool has_lines = !failed.last_lines.empty();
  say(who + " " + failed.happened +
      (ranks > 1 ? "; it was the first to fail, and ended the others" : "") +
      (has_lines ? ". Its last lines:" : ". It wrote nothing"));
  for (const std::string& line : failed.last_lines) say("  " + printable(line));
}

// Shows how the run ended. Returns the exit code.
int report_end(const GroupEnd& end, int ranks, Session& session) {
  if (end.failed && end.signal_number == 0) say_failure(*end.failed, ranks);
  Json::Value object(Json::objectValue);
  object["ranks"] = ranks;
  object["seconds"] = end.seconds;
  object["exit_code"] = end.exit_code;
  object["signal"] = end.signal_number == 0 ? Json::Value() : Json::Value(end.signal_number);
  object["failed"] = Json::Value();
  if (end.failed) {
    object["failed"]["rank"] = end.failed->rank;
    object["failed"]["exit_code"] = end.failed->exit_code;
    object["failed"]["happened"] = valid_utf8(end.failed->happened);
    std::vector<std::string> lines;
    for (const std::string& line : end.failed->last_lines) lines.push_back(valid_utf8(line));
    object["failed"]["last_lines"] = strings(lines);
  }
  session.emit(object);
  return end.exit_code;
}

int show_lines(const std::vector<HostLine>& lines, int ranks, Session& session) {
  Json::Value object(Json::objectValue);
  object["ranks"] = ranks;
  object["lines"] = Json::Value(Json::arrayValue);
  for (const HostLine& line : lines) {
    const std::string text = shell_line(line.argv);
    session.console().print(line.host.empty() ? text : "# on " + line.host + "\n" + text);
    Json::Value one(Json::objectValue);
    one["host"] = line.host.empty() ? Json::Value() : Json::Value(line.host);
    one["argv"] = strings(line.argv);
    object["lines"].append(one);
  }
  session.emit(object);
  return kExitDone;
}

}  // namespace

int run_launch(const LaunchArguments& arguments, Session& session) {
  if (!arguments.as_rank.empty()) return run_as_rank(arguments);
  const std::vector<Host> hosts = find_hosts(arguments);
  const LaunchHow how = choose_how(arguments, hosts);
  const int ranks = count_ranks(hosts);
  const LaunchOutput output{session.json() ? STDERR_FILENO : STDOUT_FILENO, say};
  if (hosts.size() == 1 && is_this_host(hosts.front().name) && how != LaunchHow::srun) {
    ::setenv(kLaunchLineVariable, shell_line(session.argv()).c_str(), /*overwrite=*/1);
    return report_end(run_ranks_here(arguments, hosts.front(), how, output), ranks, session);
  }
  const std::vector<HostLine> lines = host_lines(arguments, hosts, how);
  if (!arguments.run) return show_lines(lines, ranks, session);
  return report_end(run_line_here(arguments, lines.front(), output), ranks, session);
}

}  // namespace sluice::cli
