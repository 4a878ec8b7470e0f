#pragma once
// A rank that mpirun starts. mpirun would cut the lines of the ranks, give them a second to end,
// and hide which failed first. So it starts `sluice launch --as-rank PIPES PROGRAM` for each rank,
// which runs the program on pipes of the launcher, tells the launcher its process and its end, and
// itself ends with 0. Not across hosts. Thread-safe: values and free functions without state.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "command/arguments.hpp"
#include "launch/child/child_process.hpp"

namespace sluice::cli {

// Write ends of pipes, by their numbers in the launcher, which opens them for others through /proc.
struct RankPipes {
  struct Streams {
    int out = -1;
    int err = -1;
  };
  pid_t launcher = -1;
  int status = -1;             // lines of RankStatus
  std::vector<Streams> ranks;  // by rank
};
// "PID:STATUS:OUT0:ERR0:OUT1:ERR1".
std::string to_text(const RankPipes& pipes);

// A line on the status pipe: the rank began as `process`, or ended.
struct RankStatus {
  int rank = -1;
  pid_t process = -1;
  std::optional<ProcessEnd> end;
};
// Throws Error for a line that is none.
RankStatus parse_status(const std::string& line);

// Runs the program of one rank to its end. Blocks. Throws InvalidArgument when this process is no
// rank of the launcher, IoError when its pipes are gone.
int run_as_rank(const LaunchArguments& arguments);

}  // namespace sluice::cli
