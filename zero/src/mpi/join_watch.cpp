#include "mpi/join_watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "sluice/base/host_name.hpp"
#include "sluice/base/threads.hpp"

namespace sluice::zero {

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kExitOther = 1;       // docs/cli.md, "Exit codes"
constexpr int kExitOfSignal = 128;  // and the signal's number

// Not the log: its sink may wait for a lock of the thread that joins.
[[noreturn]] void end_process(const std::string& line, int exit_code) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(exit_code);
}

std::string too_late(Seconds limit, const LaunchEnvironment& place) {
  std::ostringstream text;
  text << "sluice: error: rank " << place.rank << " of " << place.world_size << " (host "
       << host_name() << ", process " << ::getpid()
       << ") waits for the other ranks to join by MPI, and not all have come within "
       << limit.count()
       << " s: one is stopped, has ended, never called MPI_Init, or its host cannot be reached; "
          "look at the other ranks' processes. SLUICE_RANK_TIMEOUT sets the seconds (0: no "
          "limit)\n";
  return text.str();
}

}  // namespace

JoinWatch::JoinWatch(Seconds limit, const std::atomic<int>* stop, const LaunchEnvironment& place) {
  constexpr std::chrono::milliseconds kLook{10};
  // Rank 0 says it for all: its end makes the launcher end the others, in seconds on a busy host.
  constexpr Seconds kAfterRank0{5};
  // A process that stood still itself has seen nothing in that time.
  constexpr Seconds kMostOfALook{1};
  const Seconds patience = place.rank == 0 ? limit : limit + kAfterRank0;
  // Made here: MPI_Init sets variables of the environment, which the thread must not read then.
  const std::string line = too_late(limit, place);
  thread_ = start_thread("sluice-join", [=, this] {
    Seconds waited{0};
    Clock::time_point looked_at = Clock::now();
    while (!joined_) {
      if (const int signal = stop == nullptr ? 0 : stop->load(); signal != 0)
        end_process("sluice: stopped before all ranks had joined\n", kExitOfSignal + signal);
      if (limit.count() > 0 && waited > patience) end_process(line, kExitOther);
      std::this_thread::sleep_for(kLook);
      const Clock::time_point now = Clock::now();
      waited += std::min<Seconds>(now - looked_at, kMostOfALook);
      looked_at = now;
    }
  });
}

JoinWatch::~JoinWatch() {
  joined_ = true;
  thread_.join();
}

}  // namespace sluice::zero
