#include "engine/log_lines.hpp"

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <string_view>

#include "sluice/base/mutex.hpp"

namespace sluice::python {

struct LogLines::Queue {
  static constexpr std::size_t kMostLines = 10'000;

  const pid_t process = ::getpid();
  Mutex mutex;
  CondVar changed;
  std::vector<Line> lines SLUICE_GUARDED_BY(mutex);
  bool ended SLUICE_GUARDED_BY(mutex) = false;

  void add(LogLevel level, std::string_view message) {
    if (is_forked() || !push(level, message))
      std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(message.size()), message.data());
  }

  // A child's copy of the mutex may be locked for ever.
  bool is_forked() const { return ::getpid() != process; }

  bool push(LogLevel level, std::string_view message) {
    MutexLock lock(mutex);
    if (ended || lines.size() == kMostLines) return false;
    lines.emplace_back(level, message);
    changed.notify_all();
    return true;
  }
};

LogLines::LogLines() : queue_(std::make_shared<Queue>()) {
  set_log_sink(
      [queue = queue_](LogLevel level, std::string_view message) { queue->add(level, message); });
}

std::vector<LogLines::Line> LogLines::take() {
  MutexLock lock(queue_->mutex);
  while (queue_->lines.empty() && !queue_->ended) queue_->changed.wait(queue_->mutex);
  return std::exchange(queue_->lines, {});
}

void LogLines::end() {
  if (queue_->is_forked()) return;
  {
    MutexLock lock(queue_->mutex);
    if (std::exchange(queue_->ended, true)) return;
    queue_->changed.notify_all();
  }
  set_log_sink(nullptr);
}

}  // namespace sluice::python
