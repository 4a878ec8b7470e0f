#pragma once
// Signals that the program handles itself. SIGINT, SIGTERM, SIGHUP and SIGUSR1 become a number that
// the training loop polls: the first signal requests a stop after the step in progress, a second
// one ends the process at once. SIGPIPE also ends a run after its step. A SIGHUP that is ignored at
// the start, by nohup, stays ignored. mpirun and srun hand SIGUSR1 on to their ranks and kill none.

#include <atomic>
#include <string>

namespace sluice::cli {

// Installs the handlers for the life of the object; after a signal the handlers stay for the life
// of the process. Only one object may exist at a time. The signals may arrive on any thread.
// Confined to thread: main.
class StopSignals {
 public:
  // Messages go to standard error. The first signal's message says that the process stops. A second
  // signal writes `at_once_message` and ends the process.
  explicit StopSignals(const std::string& at_once_message = "\n");
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From here on the first signal's message says that the step in progress is finished first.
  void begin_steps();
  // 0, or the number of the signal that arrived.
  const std::atomic<int>& stop() const;
};

// Whether this process ignores the signal, as SIGHUP when nohup has started it.
bool is_ignored(int number);

// After this call, growing a file beyond RLIMIT_FSIZE fails that write with EFBIG instead of ending
// the process.
void ignore_file_size_signal();

}  // namespace sluice::cli
