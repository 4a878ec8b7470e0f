#include "launch/child/child_process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "sluice/base/error.hpp"
#include "sluice/base/fd.hpp"

namespace sluice::cli {

namespace {

constexpr int kNotStarted = 127;  // as shells have it

void set_standard_streams(const ChildProcess& child) {
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  if (child.out >= 0) ::dup2(child.out, STDOUT_FILENO);
  if (child.err >= 0) ::dup2(child.err, STDERR_FILENO);
}

// Handlers end with exec. Signals that this program ignores would stay ignored; SIGHUP may be
// ignored for nohup, and stays so.
void reset_signals() {
  for (const int number : {SIGPIPE, SIGXFSZ}) ::signal(number, SIG_DFL);
}

void set_affinity(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  ::sched_setaffinity(0, sizeof set, &set);  // checked against the allowed cores before
}

// In the new process. Returns only when the program cannot be executed. launch has one thread, so
// memory may be allocated here.
int execute(const ChildProcess& child, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNotStarted);  // it ended before the line above
  set_standard_streams(child);
  reset_signals();
  set_affinity(child.cpus);
  for (const auto& [name, value] : child.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& argument : child.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  return errno;
}

}  // namespace

pid_t start_process(const ChildProcess& child) {
  int ends[2];  // the new process says here why it could not be executed
  SLUICE_SYSCALL(::pipe2(ends, O_CLOEXEC), child.argv.front());
  const UniqueFd reads(ends[0]);
  UniqueFd writes(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t process = SLUICE_SYSCALL(::fork(), child.argv.front());
  if (process == 0) {
    const int problem = execute(child, parent);
    [[maybe_unused]] const ssize_t said = ::write(writes.get(), &problem, sizeof problem);
    ::_exit(kNotStarted);
  }
  ::setpgid(process, process);  // whichever of the two processes comes first
  writes.reset();
  int problem = 0;
  const ssize_t got = SLUICE_SYSCALL(::read(reads.get(), &problem, sizeof problem), "a pipe");
  if (got == 0) return process;
  SLUICE_SYSCALL(::waitpid(process, nullptr, 0), child.argv.front());
  throw InvalidArgument(child.argv.front() + ": cannot be executed: " + std::strerror(problem));
}

std::string ProcessEnd::text() const {
  if (!by_signal) return "exited with code " + std::to_string(value);
  const char* const name = ::sigabbrev_np(value);
  return "was ended by signal " + std::to_string(value) +
         (name == nullptr ? "" : " (SIG" + std::string(name) + ")");
}

namespace {

std::optional<ProcessEnd> reap_with(pid_t process, int options) {
  siginfo_t info = {};
  const auto id = static_cast<id_t>(process);
  SLUICE_SYSCALL(::waitid(P_PID, id, &info, WEXITED | WNOWAIT | options), "a rank");
  if (info.si_pid == 0) return std::nullopt;
  ::kill(-process, SIGKILL);
  int status = 0;
  SLUICE_SYSCALL(::waitpid(process, &status, 0), "a rank");
  if (WIFSIGNALED(status)) return ProcessEnd{true, WTERMSIG(status)};
  return ProcessEnd{false, WEXITSTATUS(status)};
}

}  // namespace

std::optional<ProcessEnd> reap(pid_t process) {
  return reap_with(process, WNOHANG);
}

ProcessEnd wait_for(pid_t process) {
  return *reap_with(process, 0);
}

void signal_group(pid_t group, int number) {
  ::kill(-group, number);
  if (number != SIGKILL) ::kill(-group, SIGCONT);
}

}  // namespace sluice::cli
