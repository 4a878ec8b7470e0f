#include "launch/child/launch_signals.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>

#include "process/signals.hpp"
#include "sluice/base/error.hpp"

namespace sluice::cli {

namespace {

// A handler reaches only globals.
volatile sig_atomic_t g_first = 0;
volatile sig_atomic_t g_count = 0;
volatile int g_wake = -1;

constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};

extern "C" void on_launch_signal(int number) {
  const int saved = errno;
  if (number != SIGCHLD) {
    if (g_first == 0) g_first = number;
    g_count = g_count + 1;
  }
  [[maybe_unused]] const ssize_t written = ::write(g_wake, "", 1);  // full: it wakes already
  errno = saved;
}

void set_action(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

}  // namespace

LaunchSignals::LaunchSignals() {
  assert(g_wake < 0);
  int ends[2];
  SLUICE_SYSCALL(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), "a pipe");
  reads_ = UniqueFd(ends[0]);
  writes_ = UniqueFd(ends[1]);
  g_first = 0;
  g_count = 0;
  g_wake = writes_.get();
  for (const int number : kCaught) {
    if (number != SIGHUP || !is_ignored(SIGHUP)) set_action(number, &on_launch_signal);  // nohup
  }
  set_action(SIGPIPE, SIG_IGN);
}

LaunchSignals::~LaunchSignals() {
  for (const int number : kCaught) {
    if (!is_ignored(number)) set_action(number, SIG_DFL);
  }
  set_action(SIGPIPE, SIG_DFL);
  g_wake = -1;
}

void LaunchSignals::clear() const {
  char bytes[64];
  while (::read(reads_.get(), bytes, sizeof bytes) > 0) {
  }
}

int LaunchSignals::first() const {
  return g_first;
}

int LaunchSignals::count() const {
  return g_count;
}

}  // namespace sluice::cli
