#include "terminal/console.hpp"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <memory>

#include "terminal/text_format.hpp"

namespace sluice::cli {

namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

void put(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::debug:
      return spdlog::level::debug;
  }
  return spdlog::level::info;
}

LogLevel from_spdlog(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return LogLevel::error;
  if (level == spdlog::level::warn) return LogLevel::warn;
  return level == spdlog::level::info ? LogLevel::info : LogLevel::debug;
}

// Passes spdlog's lines to the console, which has the lock.
class ConsoleSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    console_.log(from_spdlog(message.level),
                 std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

 private:
  Console& console_;
};

}  // namespace

Console::Console(std::FILE* out, std::FILE* log, TerminalFacts facts)
    : out_(out), log_(log), facts_(facts) {}

Console::~Console() {
  status("");
}

TerminalFacts Console::terminal_now() const {
  TerminalFacts facts = facts_;
  if (const auto columns = columns_now(out_)) facts.columns = *columns;
  return facts;
}

void Console::print(std::string_view text) {
  MutexLock lock(mutex_);
  erase_status();
  constexpr int kLeastColumns = 20;
  if (facts_.is_terminal && facts_.columns >= kLeastColumns) {
    put(out_, wrap_sentences(text, static_cast<std::size_t>(facts_.columns)));
  } else {
    put(out_, text);
  }
  if (text.empty() || text.back() != '\n') put(out_, "\n");
  draw_status();
  std::fflush(out_);
}

void Console::stream(std::string_view text) {
  MutexLock lock(mutex_);
  erase_status();
  put(out_, text);
  std::fflush(out_);
}

void Console::status(std::string_view text) {
  if (!facts_.is_terminal) return;
  MutexLock lock(mutex_);
  erase_status();
  status_ = text;
  draw_status();
  std::fflush(out_);
}

void Console::log(LogLevel level, std::string_view message) {
  MutexLock lock(mutex_);
  erase_status();
  std::fflush(out_);
  if (level == LogLevel::error) put(log_, "error: ");
  if (level == LogLevel::warn) put(log_, "warning: ");
  put(log_, printable(message));
  put(log_, "\n");
  std::fflush(log_);
  draw_status();
  std::fflush(out_);
}

LogSink Console::make_log_sink() {
  // Shared by the copies of the sink, as spdlog's interface requires.
  auto logger = std::make_shared<spdlog::logger>("sluice", std::make_shared<ConsoleSink>(*this));
  logger->set_level(spdlog::level::trace);
  return [logger](LogLevel level, std::string_view message) {
    logger->log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
  };
}

void Console::erase_status() {
  if (status_shown_) put(out_, kEraseLine);
  status_shown_ = false;
}

void Console::draw_status() {
  if (status_.empty()) return;
  // A line that wraps could not be rewritten in place. On some terminals the last column wraps.
  put(out_, cut_to_width(status_, static_cast<std::size_t>(terminal_now().columns - 1)));
  status_shown_ = true;
}

}  // namespace sluice::cli
