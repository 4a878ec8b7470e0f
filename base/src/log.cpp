#include "sluice/base/log.hpp"

#include <atomic>
#include <cstdio>

#include "sluice/base/mutex.hpp"

namespace sluice {

namespace {

struct LogState {
  Mutex mutex;
  LogSink sink SLUICE_GUARDED_BY(mutex);
  std::atomic<int> most_verbose{static_cast<int>(LogLevel::warn)};
};

// The process has one sink. The state is never destroyed, so that static destructors may log.
LogState& state() {
  static auto* instance = new LogState;
  return *instance;
}

}  // namespace

void set_log_sink(LogSink sink, LogLevel most_verbose) {
  MutexLock lock(state().mutex);
  state().most_verbose = static_cast<int>(sink ? most_verbose : LogLevel::warn);
  state().sink = std::move(sink);
}

void log(LogLevel level, std::string_view message) noexcept {
  if (static_cast<int>(level) > state().most_verbose.load()) return;
  try {
    MutexLock lock(state().mutex);
    if (state().sink) {
      state().sink(level, message);
    } else {
      std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(message.size()), message.data());
    }
  } catch (...) {
    // A sink that throws must not turn a log line into a failure of the run.
    std::fputs("sluice: the log sink threw\n", stderr);
  }
}

}  // namespace sluice
