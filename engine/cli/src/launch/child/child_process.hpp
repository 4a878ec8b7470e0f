#pragma once
// Starts and ends the processes of launch. Confined to thread: main.

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::cli {

struct ChildProcess {
  std::vector<std::string> argv;                                 // argv[0] is looked up in PATH
  std::vector<std::pair<std::string, std::string>> environment;  // added to that of this process
  std::vector<int> cpus;                                         // empty: those of this process
  int out = -1;  // become standard output and error; the caller owns them
  int err = -1;
};

// Starts the process, with nothing on standard input, in a process group of its own: a signal to
// the group reaches all that it starts, and Ctrl-C of the terminal does not reach it twice. The
// kernel kills the process when this one ends. Returns its id, which is the group's too. Throws
// InvalidArgument when the program cannot be executed, IoError when the system starts no process.
pid_t start_process(const ChildProcess& child);

// How a process ended.
struct ProcessEnd {
  bool by_signal = false;
  int value = 0;  // the exit code, or the signal
  // The exit code as a shell has it: 128 + the signal.
  int exit_code() const { return by_signal ? 128 + value : value; }
  // "exited with code 3", "was ended by signal 9 (SIGKILL)".
  std::string text() const;
};

// How the process ended; nullopt while it runs. Kills what is left of its group first, while the
// group's id cannot belong to another.
std::optional<ProcessEnd> reap(pid_t process);
// As reap(), but blocks until the process has ended.
ProcessEnd wait_for(pid_t process);
// Sends a signal to the group, also to a stopped one. An absent group is ignored.
void signal_group(pid_t group, int number);

}  // namespace sluice::cli
