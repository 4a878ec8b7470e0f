#pragma once
// The signals that the program does not leave as they are. SIGINT and SIGTERM become a number that
// the training loop polls: the first asks to stop after the step in progress, a second one ends the
// process at once. SIGPIPE, too, ends a run after its step.

#include <string>

namespace sluice::cli {

// Handlers for the life of the object, and after a signal for that of the process; one object at a
// time. The signals may arrive on any thread. Confined to thread: main.
class StopSignals {
 public:
  // Written to standard error: at the first signal that the process stops after what it still
  // `finishes` ("the step in progress"; empty: nothing), and `at_once_message` when a second one
  // ends it.
  explicit StopSignals(const std::string& finishes = "", const std::string& at_once_message = "\n");
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the number of the signal that came.
  const volatile int& stop() const;
};

// A file that grows beyond RLIMIT_FSIZE is then an error of that write (EFBIG), and not the end of
// the process.
void ignore_file_size_signal();

}  // namespace sluice::cli
