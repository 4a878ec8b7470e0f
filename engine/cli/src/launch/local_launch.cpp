#include "launch/local_launch.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "launch/program.hpp"
#include "launch/rank_cores.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/threads.hpp"
#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// A port of this host that nobody listens on now.
int free_port() {
  const UniqueFd fd(SLUICE_SYSCALL(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "a port"));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  SLUICE_SYSCALL(::bind(fd.get(), any, size), "a port");
  SLUICE_SYSCALL(::getsockname(fd.get(), any, &size), "a port");
  return ntohs(address.sin_port);
}

// The named GPUs of those that this process may use. Throws InvalidArgument for a slot beyond them.
std::string gpus_of_slots(const Host& host) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr || *visible == '\0') return join(host.slots, ",");
  const std::vector<std::string> names = visible_gpus(visible);
  std::string chosen;
  for (const int slot : host.slots) {
    SLUICE_CHECK(static_cast<std::size_t>(slot) < names.size(),
                 "slot " + std::to_string(slot) + " of " + host.name +
                     ": CUDA_VISIBLE_DEVICES=" + visible + " has " +
                     (names.empty()       ? "no slot"
                      : names.size() == 1 ? "slot 0 only"
                                          : "slots 0 to " + std::to_string(names.size() - 1)));
    chosen += (chosen.empty() ? "" : ",") + names[static_cast<std::size_t>(slot)];
  }
  return chosen;
}

// The ranks of this host, before they begin.
struct LocalRanks {
  int count = 1;
  Variables environment;         // common to all
  std::vector<RankCores> cores;  // by rank; empty: not bound
  std::string threads_line;
};

// Ranks share the cores: OpenMP's threads of each are its part of them, unless the user says.
void set_threads(const LaunchArguments& arguments, LocalRanks& ranks) {
  if (arguments.bind_cores) ranks.cores = share_cores(arguments.core_list, ranks.count);
  if (std::getenv("OMP_NUM_THREADS") != nullptr) {
    ranks.threads_line = "OMP_NUM_THREADS is the environment's";
    return;
  }
  int threads = ranks.count;
  if (arguments.bind_cores) {
    threads = ranks.cores.front().cores;
  } else {
    const int cores = allowed_cores().value_or(static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
    threads = std::max(1, cores / ranks.count);
  }
  ranks.environment.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
  ranks.threads_line = "OMP_NUM_THREADS=" + std::to_string(threads);
}

LocalRanks describe(const LaunchArguments& arguments, const Host& host) {
  LocalRanks ranks;
  ranks.count = static_cast<int>(host.slots.size());
  const std::string address =
      arguments.master_address.empty() ? "127.0.0.1" : arguments.master_address;
  const int port =
      arguments.master_port == 0 ? free_port() : static_cast<int>(arguments.master_port);
  ranks.environment = {{"MASTER_ADDR", address}, {"MASTER_PORT", std::to_string(port)}};
  if (host.is_filtered) ranks.environment.emplace_back("CUDA_VISIBLE_DEVICES", gpus_of_slots(host));
  set_threads(arguments, ranks);
  return ranks;
}

void say_start(const LaunchArguments& arguments, const LocalRanks& ranks, const std::string& by,
               const LaunchOutput& output) {
  output.say(counted(ranks.count, "rank") + " of " + shell_line(program_line(arguments)) + by +
             "; MASTER_ADDR=" + ranks.environment[0].second + " MASTER_PORT=" +
             ranks.environment[1].second + ", " + ranks.threads_line + " in each");
  for (std::size_t rank = 0; rank < ranks.cores.size(); ++rank) {
    output.say("rank " + std::to_string(rank) + " has the cores " +
               join(ranks.cores[rank].cpus, ","));
  }
}

Variables torchrun_variables(int rank, int ranks) {
  const std::string own = std::to_string(rank);
  const std::string all = std::to_string(ranks);
  return {{"RANK", own},
          {"WORLD_SIZE", all},
          {"LOCAL_RANK", own},
          {"LOCAL_WORLD_SIZE", all},
          {"GROUP_RANK", "0"}};
}

// Root may run mpirun, more ranks than cores may be started, and ranks are bound by this program or
// not at all: variables, since flags differ between Open MPI 4, 5 and MPICH.
Variables mpirun_variables() {
  Variables variables = {{"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                         {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                         {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                         {"PRTE_MCA_hwloc_default_binding_policy", "none"}};
  if (::geteuid() == 0) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"})
      variables.emplace_back(name, "1");
  }
  return variables;
}

void check_installed(const std::string& program) {
  if (!find_in_path(program).empty()) return;
  throw InvalidArgument(program + " is not in PATH: " +
                        (program == "mpirun"
                             ? "install openmpi-bin (Debian, Ubuntu) or openmpi (Fedora, Arch)"
                             : "it comes with Slurm, on the hosts of its cluster"));
}

GroupOptions group_options(const LaunchArguments& arguments, int ranks,
                           const LaunchOutput& output) {
  GroupOptions options;
  options.ranks = ranks;
  options.log_directory = arguments.log_directory;
  options.grace_seconds = arguments.grace_seconds;
  options.out_fd = output.out_fd;
  options.say = output.say;
  if (!arguments.log_directory.empty())
    std::filesystem::create_directories(arguments.log_directory);
  return options;
}

// mpirun starts this program around each rank.
ChildProcess around_ranks(const LaunchArguments& arguments, const LocalRanks& ranks,
                          const std::string& pipes) {
  ChildProcess mpirun;
  mpirun.argv = {"mpirun",    "-n", std::to_string(ranks.count), own_path(), "launch",
                 "--as-rank", pipes};
  if (arguments.bind_cores) mpirun.argv.emplace_back("--bind-cores-to-rank");
  if (!arguments.core_list.empty()) {
    mpirun.argv.emplace_back("--bind-core-list");
    mpirun.argv.push_back(arguments.core_list);
  }
  if (arguments.is_module) mpirun.argv.emplace_back("--module");
  if (arguments.no_python) mpirun.argv.emplace_back("--no-python");
  mpirun.argv.insert(mpirun.argv.end(), arguments.program.begin(), arguments.program.end());
  mpirun.environment = ranks.environment;
  const Variables more = mpirun_variables();
  mpirun.environment.insert(mpirun.environment.end(), more.begin(), more.end());
  return mpirun;
}

}  // namespace

unsigned count_gpu_files(const std::string& folder) {
  constexpr std::string_view kStem = "nvidia";
  unsigned gpus = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kStem) && parse_number<unsigned>(name.substr(kStem.size()))) ++gpus;
  }
  return gpus;
}

GroupEnd run_ranks_here(const LaunchArguments& arguments, const Host& host, LaunchHow how,
                        const LaunchOutput& output) {
  const bool by_mpirun = how == LaunchHow::mpirun;
  if (by_mpirun) check_installed("mpirun");
  const LocalRanks ranks = describe(arguments, host);
  LaunchedRanks group(group_options(arguments, ranks.count, output));
  say_start(arguments, ranks, by_mpirun ? ", started by mpirun" : "", output);
  if (by_mpirun) {
    group.start_carrier(around_ranks(arguments, ranks, group.open_pipes()));
    return group.run();
  }
  for (int rank = 0; rank < ranks.count; ++rank) {
    ChildProcess child;
    child.argv = program_line(arguments);
    child.environment = ranks.environment;
    const Variables own = torchrun_variables(rank, ranks.count);
    child.environment.insert(child.environment.end(), own.begin(), own.end());
    if (!ranks.cores.empty()) child.cpus = ranks.cores[static_cast<std::size_t>(rank)].cpus;
    group.start_rank(rank, std::move(child));
  }
  return group.run();
}

GroupEnd run_line_here(const LaunchArguments& arguments, const HostLine& line,
                       const LaunchOutput& output) {
  check_installed(line.argv.front());
  output.say(shell_line(line.argv));
  GroupOptions options = group_options(arguments, 0, output);
  options.log_directory.clear();  // the line has it
  // At other signals mpirun kills its ranks after a second, and srun asks for a second signal.
  if (is_sluice_train(arguments)) options.carrier_signal = SIGUSR1;
  LaunchedRanks group(std::move(options));
  ChildProcess child;
  child.argv = line.argv;
  group.start_carrier(std::move(child));
  return group.run();
}

}  // namespace sluice::cli
