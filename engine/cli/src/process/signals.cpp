#include "process/signals.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "process/exit_code.hpp"

namespace sluice::cli {

namespace {

// A signal handler reaches only globals. All of them except g_stop and g_stopping are written
// before the handlers are installed; a text is written before g_stopping points at it.
std::atomic<int> g_stop = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // so a handler may use it
bool g_installed = false;

// Text for a handler: a fixed buffer, since a handler may not allocate.
struct Message {
  char text[8192];
  std::size_t size = 0;
  void set(const std::string& from) {
    size = std::min(from.size(), sizeof(text));
    std::memcpy(text, from.data(), size);
  }
};
Message g_stopping_now;
Message g_stopping_after;
std::atomic<const Message*> g_stopping = &g_stopping_now;
static_assert(std::atomic<const Message*>::is_always_lock_free);
Message g_at_once;

void write_to_stderr(const Message& message) {
  // A failed write to standard error has nowhere to be reported.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.text, message.size);
}

extern "C" void on_stop_signal(int number) {
  const int saved = errno;
  // The reader of the output is gone. The run ends as after a stop request, without a message,
  // because nobody would read one.
  if (number == SIGPIPE) {
    if (g_stop == 0) g_stop = number;
    return;
  }
  if (g_stop != 0) {
    write_to_stderr(g_at_once);
    ::_exit(exit_code_of_signal(number));
  }
  g_stop = number;
  write_to_stderr(*g_stopping.load());
  errno = saved;
}

void set_action(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and waits of the libraries go on; the loop polls stop()
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGPIPE})
    ::sigaction(number, &action, nullptr);
  if (!is_ignored(SIGHUP)) ::sigaction(SIGHUP, &action, nullptr);  // nohup
}

}  // namespace

StopSignals::StopSignals(const std::string& at_once_message) {
  assert(!g_installed);
  g_installed = true;
  g_stop = 0;
  g_stopping_now.set("\nsluice: stopping; the same signal again stops at once\n");
  g_stopping = &g_stopping_now;
  g_at_once.set(at_once_message);
  set_action(&on_stop_signal);
}

StopSignals::~StopSignals() {
  // After a signal the handlers stay: a second signal must end the process with the same exit code,
  // also while LibTorch is being torn down.
  if (g_stop == 0) set_action(SIG_DFL);
  g_installed = false;
}

void StopSignals::begin_steps() {
  if (g_stopping == &g_stopping_after) return;
  g_stopping_after.set(
      "\nsluice: stopping after the step in progress; the same signal again stops at once\n");
  g_stopping = &g_stopping_after;
}

const std::atomic<int>& StopSignals::stop() const {
  return g_stop;
}

bool is_ignored(int number) {
  struct sigaction action = {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void ignore_file_size_signal() {
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace sluice::cli
