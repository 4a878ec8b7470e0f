#include "launch/child/guardian.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

// Reads groups, as positive numbers, and groups that ended, as negative ones, until the other
// process is gone.
[[noreturn]] void guard(int pipe) {
  ::setpgid(0, 0);  // Ctrl-C is not for it
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) ::signal(number, SIG_IGN);
  // A pipe that the guardian held open would never end for its reader. Streams 0 to 2 are open in
  // this program, so `pipe` is above 0.
  const auto number_of_pipe = static_cast<unsigned>(pipe);
  ::close_range(0, number_of_pipe - 1, 0);
  ::close_range(number_of_pipe + 1, ~0U, 0);
  std::set<pid_t> groups;
  pid_t number = 0;
  while (true) {
    const ssize_t got = ::read(pipe, &number, sizeof number);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof number) break;
    if (number > 0) groups.insert(number);
    if (number < 0) groups.erase(-number);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian() {
  int ends[2];
  SLUICE_SYSCALL(::pipe2(ends, O_CLOEXEC), "a pipe");
  const UniqueFd reads(ends[0]);
  pipe_ = UniqueFd(ends[1]);
  process_ = SLUICE_SYSCALL(::fork(), "a process that watches the ranks");
  if (process_ == 0) guard(reads.get());
}

Guardian::~Guardian() {
  pipe_.reset();
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t group) {
  say(group);
}

void Guardian::forget(pid_t group) {
  say(-group);
}

void Guardian::say(pid_t number) {
  SLUICE_SYSCALL(::write(pipe_.get(), &number, sizeof number), "the process that watches ranks");
}

}  // namespace sluice::cli
