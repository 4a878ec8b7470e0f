#pragma once
// The ranks of this host, from their start to the end of the last one: their output, signals, and
// the end of all when one fails. Ranks are processes of this program, or of an mpirun that starts
// this program around each (mpi_rank.hpp).
//
// Not here: which programs they are, and for which hosts. Confined to thread: main.

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/child/child_process.hpp"
#include "launch/child/guardian.hpp"
#include "launch/child/launch_signals.hpp"
#include "launch/child/output_queue.hpp"
#include "launch/child/rank_output.hpp"
#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::cli {

struct GroupOptions {
  int ranks = 1;                                // 0: those of a carrier that shows them itself
  int carrier_signal = 0;                       // such a carrier gets it to hand on; 0: the signal
  std::string log_directory;                    // of rank-N.log; empty: no logs
  double grace_seconds = 60;                    // between a signal that was passed on and SIGKILL
  int out_fd = 1;                               // receives standard output of the ranks
  std::function<void(const std::string&)> say;  // a line for people, from the launcher itself
};

// The first rank that failed; -1: a carrier without ranks. `happened`: "exited with code 3".
struct FailedRank {
  int rank = 0;
  int exit_code = 1;
  std::string happened;
  std::deque<std::string> last_lines;
};

// How the run ended. The exit code is that of the failed rank; after a signal, 128 + the signal.
struct GroupEnd {
  int exit_code = 0;
  int signal_number = 0;  // that this process got, or 0
  std::optional<FailedRank> failed;
  double seconds = 0;
};

class LaunchedRanks {
 public:
  explicit LaunchedRanks(GroupOptions options);
  // Kills and reaps what still runs.
  ~LaunchedRanks();
  LaunchedRanks(const LaunchedRanks&) = delete;
  LaunchedRanks& operator=(const LaunchedRanks&) = delete;

  // Starts a rank. Throws InvalidArgument when its program cannot be executed.
  void start_rank(int rank, ChildProcess child);

  // Pipes for ranks that mpirun starts, in the notation of mpi_rank.hpp. Call it before
  // start_carrier().
  std::string open_pipes();
  // Starts mpirun, or another program that starts ranks; its own output is shown behind "[mpirun]
  // ", or as it is when no rank is expected.
  void start_carrier(ChildProcess child);

  // Waits for the end of all ranks. The first rank that fails ends the others: SIGTERM, and 5
  // seconds later SIGKILL. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on, with SIGKILL after
  // the grace; a second one kills at once, and mpirun 3 seconds after its ranks. When output or a
  // log cannot be written, ranks get SIGTERM, and SIGKILL after the grace; then it throws IoError,
  // unless the reader of the output is gone. A reader who does not read delays only the return,
  // until a signal.
  GroupEnd run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    explicit Member(RankOutput out) : output(std::move(out)) {}
    RankOutput output;
    pid_t process = -1;  // -1: mpirun has not started it yet
    bool ended = false;
    UniqueFd reads[2];   // by stream
    UniqueFd writes[2];  // held open for ranks that mpirun starts
    bool is_running() const { return process > 0 && !ended; }
  };

  void open_streams(Member& member);
  void start(Member& member, ChildProcess child);
  bool is_done() const;
  int wait_milliseconds() const;
  void wait();
  // All that is in the pipes; for a member whose processes have ended.
  void read_available(Member& member);
  // At most one buffer of each stream. Returns whether there may be more.
  bool read_some(Member& member);
  void read_status();
  void reap_all();
  void take_end(int rank, const ProcessEnd& end);
  void take_carrier_end(const ProcessEnd& end);
  void fail(FailedRank failed);
  void react_to_signals();
  void check_deadline();
  void stop(int signal_number, double grace_seconds);
  // Gives mpirun 3 seconds to clear up after its ranks.
  void kill_all();
  void kill_carrier();
  bool all_ended() const;
  bool has_output_failed() const { return log_error_ || output_.error() != 0; }
  void check_output();
  void take_output(Member& member, Stream stream, std::string_view bytes);
  void say(const std::string& line) const;

  const GroupOptions options_;
  OutputQueue output_;
  const Clock::time_point began_ = Clock::now();
  LaunchSignals signals_;
  Guardian guardian_;
  std::vector<std::unique_ptr<Member>> ranks_;
  std::unique_ptr<Member> carrier_;
  std::string carrier_name_;
  UniqueFd status_reads_;  // lines of ranks that mpirun starts
  UniqueFd status_writes_;
  std::string status_;  // a line that has no end yet
  std::optional<FailedRank> failed_;
  std::optional<Clock::time_point> deadline_;
  bool passed_on_ = false;  // a signal
  bool killed_ = false;
  std::optional<IoError> log_error_;  // the first
  bool abandons_output_ = false;      // a signal came, and nobody reads
};

}  // namespace sluice::cli
