#pragma once
// A program that runs while a test watches it, and is killed with the test.
// Thread-compatible: callers synchronise.

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/run_program.hpp"

namespace sluice::test {

// One process and all that it starts. Ranks take each other for silent after 5 seconds.
class Background {
  using Clock = std::chrono::steady_clock;

 public:
  // `output`: the file that takes standard output and standard error.
  Background(std::vector<std::string> argv, const std::string& output) : output_(output) {
    child_ = ::fork();
    if (child_ != 0) return;
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::setenv("SLUICE_RANK_TIMEOUT", "5", 1);
    std::vector<char*> pointers;
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  ~Background() {
    if (!ended_) ::kill(child_, SIGKILL);
    if (!ended_) ::waitpid(child_, nullptr, 0);
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // The exit code, 128 + number of a signal; none when it still runs after `seconds`.
  std::optional<int> wait(double seconds) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) == 0) {
      if (Clock::now() > end) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string text() const { return file_text(output_); }

 private:
  const std::string output_;
  pid_t child_ = 0;
  bool ended_ = false;
};

}  // namespace sluice::test
