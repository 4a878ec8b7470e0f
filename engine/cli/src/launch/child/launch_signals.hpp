#pragma once
// Signals that launch passes on to the ranks. Handlers only count and wake a poll(); the loop acts.
// Confined to thread: main.

#include "sluice/base/fd.hpp"

namespace sluice::cli {

// Catches SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD for the life of the object, and ignores
// SIGPIPE. Calls that block end with EINTR. Only one object may exist at a time.
class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  // Readable after a signal; clear() empties it.
  int fd() const { return reads_.get(); }
  void clear() const;
  // Number of the first signal that is no SIGCHLD, or 0; how many of them came.
  int first() const;
  int count() const;

 private:
  UniqueFd reads_;
  UniqueFd writes_;
};

}  // namespace sluice::cli
