#pragma once
// Collects log messages during its lifetime.

#include <string>
#include <string_view>
#include <vector>

#include "sluice/base/log.hpp"
#include "sluice/base/mutex.hpp"

namespace sluice::test {

// Thread-safe.
class CapturedLog {
 public:
  explicit CapturedLog(LogLevel most_verbose = LogLevel::debug) {
    set_log_sink(
        [this](LogLevel level, std::string_view message) {
          MutexLock lock(mutex_);
          messages_.emplace_back(level, message);
        },
        most_verbose);
  }
  ~CapturedLog() { set_log_sink(nullptr); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  struct Message {
    Message(LogLevel message_level, std::string_view message_text)
        : level(message_level), text(message_text) {}
    LogLevel level;
    std::string text;
  };
  std::vector<Message> messages() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  bool contains(std::string_view part) const {
    for (const Message& message : messages()) {
      if (message.text.find(part) != std::string::npos) return true;
    }
    return false;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Message> messages_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::test
