#pragma once
// A program that runs while a test watches it. The destructor kills it, so a failed test leaves
// none. Thread-compatible: callers synchronise.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "file_text.hpp"

namespace sluice::test {

using Environment = std::vector<std::pair<std::string, std::string>>;

// How a program starts.
struct ProcessSetup {
  Environment environment = {};
  // Files of its output, which may be one file. Empty: the output of the test.
  std::string out = "/dev/null";
  std::string err = "/dev/null";
  // Runs in the child before the program is executed: it sets limits (in_child.hpp).
  std::function<void()> before = {};
};

class Process {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Process(std::vector<std::string> argv, const ProcessSetup& setup = {})
      : out_(setup.out), id_(::fork()) {
    if (id_ == -1) throw std::runtime_error("fork");
    if (id_ == 0) execute(argv, setup);
  }
  ~Process() {
    signal(SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  void signal(int number) const {
    if (!code_) ::kill(id_, number);
  }
  bool runs() { return !reap(WNOHANG); }
  // Blocks. Returns the exit code, or the negative number of the signal that killed it.
  int wait() {
    reap(0);
    return *code_;
  }
  // Likewise; none when it still runs after `seconds`.
  std::optional<int> wait(double seconds) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (runs() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // polls another process
    return code_;
  }
  // Standard output so far.
  std::string text() const { return file_text(out_); }
  // CPU time of a program that ended, independent of the machine's load.
  double cpu_seconds() const {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage_.ru_utime) + seconds(usage_.ru_stime);
  }

 private:
  [[noreturn]] static void execute(std::vector<std::string>& argv, const ProcessSetup& setup) {
    const auto redirect = [](const std::string& path, int to) {
      if (!path.empty())
        ::dup2(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), to);
    };
    redirect(setup.out, STDOUT_FILENO);
    redirect(setup.err, STDERR_FILENO);
    for (const auto& [name, value] : setup.environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> pointers;
    pointers.reserve(argv.size() + 1);
    for (std::string& argument : argv) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (setup.before) setup.before();
    ::execv(pointers[0], pointers.data());
    ::_exit(127);
  }
  // Whether it has ended.
  bool reap(int flags) {
    if (code_) return true;
    int status = 0;
    const pid_t ended = ::wait4(id_, &status, flags, &usage_);
    if (ended == -1) throw std::runtime_error("wait4");
    if (ended == id_) code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return code_.has_value();
  }

  const std::string out_;
  const pid_t id_;
  std::optional<int> code_;
  rusage usage_ = {};
};

}  // namespace sluice::test
