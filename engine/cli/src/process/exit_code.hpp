#pragma once
// The one place where failures become exit codes (docs/cli.md has the table).
// Thread-safe: free functions without state.

#include <exception>
#include <string>

namespace sluice::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitOther = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDoesNotFit = 3;
inline constexpr int kExitStorage = 4;

// 129 for SIGHUP, 130 for SIGINT, 138 for SIGUSR1, 143 for SIGTERM.
constexpr int exit_code_of_signal(int signal_number) {
  return 128 + signal_number;
}

struct Failure {
  int exit_code = kExitOther;
  std::string message;
  // Each line begins with file:line:column, which editors read; nothing may precede it.
  bool begins_with_place = false;
  // Another rank of the run shows the message, and should end first.
  bool shown_by_another_rank = false;
};
// Maps an error, which is not null, to its exit code and message.
Failure classify(const std::exception_ptr& error);

}  // namespace sluice::cli
