#include "launch/mpi_rank.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <sstream>

#include "launch/program.hpp"
#include "launch/rank_cores.hpp"
#include "process/exit_code.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"
#include "sluice/base/launch_environment.hpp"

namespace sluice::cli {

namespace {

RankPipes parse_pipes(const std::string& text) {
  std::istringstream numbers(text);
  char colon = 0;
  RankPipes pipes;
  numbers >> pipes.launcher >> colon >> pipes.status;
  RankPipes::Streams streams;
  while (numbers >> colon >> streams.out >> colon >> streams.err) pipes.ranks.push_back(streams);
  SLUICE_CHECK(!pipes.ranks.empty() && numbers.eof(), "--as-rank is for mpirun");
  return pipes;
}

UniqueFd open_end(const RankPipes& pipes, int number) {
  const std::string path =
      "/proc/" + std::to_string(pipes.launcher) + "/fd/" + std::to_string(number);
  return UniqueFd(SLUICE_SYSCALL(::open(path.c_str(), O_WRONLY | O_CLOEXEC), path));
}

// Less than PIPE_BUF, so the lines of ranks stay whole.
void tell(const UniqueFd& status, const std::string& line) {
  SLUICE_SYSCALL(::write(status.get(), line.data(), line.size()), "the pipe of sluice launch");
}

std::string end_line(int rank, const ProcessEnd& end) {
  return std::to_string(rank) + (end.by_signal ? " signal " : " exit ") +
         std::to_string(end.value) + "\n";
}

}  // namespace

std::string to_text(const RankPipes& pipes) {
  std::string text = std::to_string(pipes.launcher) + ":" + std::to_string(pipes.status);
  for (const RankPipes::Streams& streams : pipes.ranks)
    text += ":" + std::to_string(streams.out) + ":" + std::to_string(streams.err);
  return text;
}

RankStatus parse_status(const std::string& line) {
  std::istringstream words(line);
  RankStatus status;
  std::string kind;
  int value = -1;
  if (!(words >> status.rank >> kind >> value)) throw Error("no status of a rank: " + line);
  if (kind == "began") {
    status.process = value;
  } else {
    status.end = ProcessEnd{kind == "signal", value};
  }
  return status;
}

int run_as_rank(const LaunchArguments& arguments) {
  const RankPipes pipes = parse_pipes(arguments.as_rank);
  const LaunchEnvironment place = launch_environment();
  SLUICE_CHECK(static_cast<std::size_t>(place.world_size) == pipes.ranks.size(),
               "mpirun started " + std::to_string(place.world_size) + " ranks, not " +
                   std::to_string(pipes.ranks.size()));
  const UniqueFd status = open_end(pipes, pipes.status);
  const RankPipes::Streams streams = pipes.ranks[static_cast<std::size_t>(place.rank)];
  const UniqueFd out = open_end(pipes, streams.out);
  const UniqueFd err = open_end(pipes, streams.err);
  ChildProcess child;
  child.argv = program_line(arguments);
  child.out = out.get();
  child.err = err.get();
  if (arguments.bind_cores) {
    child.cpus = share_cores(arguments.core_list,
                             place.local_size)[static_cast<std::size_t>(place.local_rank)]
                     .cpus;
  }
  try {
    const pid_t process = start_process(child);
    tell(status, std::to_string(place.rank) + " began " + std::to_string(process) + "\n");
    tell(status, end_line(place.rank, wait_for(process)));
  } catch (const InvalidArgument& error) {  // the program cannot be executed
    const std::string line = std::string(error.what()) + "\n";
    SLUICE_SYSCALL(::write(err.get(), line.data(), line.size()), "the pipe of sluice launch");
    tell(status, end_line(place.rank, {false, kExitUsage}));
  }
  return kExitDone;
}

}  // namespace sluice::cli
