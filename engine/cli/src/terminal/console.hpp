#pragma once
// Console: a command's output for people: permanent lines, and on a terminal one status line below
// them that is rewritten in place. Log lines go to standard error without tearing the status line.

#include <cstdio>
#include <string>
#include <string_view>

#include "sluice/base/log.hpp"
#include "sluice/base/mutex.hpp"
#include "terminal/terminal.hpp"

namespace sluice::cli {

// Thread-safe.
class Console {
 public:
  // The caller owns the streams, which must outlive the console.
  Console(std::FILE* out, std::FILE* log, TerminalFacts facts);
  // Removes the status line.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  const TerminalFacts& terminal() const { return facts_; }
  // Facts for a status line: the width is the terminal's present one, which its user may change,
  // and may be less than text is wrapped to.
  TerminalFacts terminal_now() const;
  // Writes permanent text, and a newline if the text does not end with one.
  void print(std::string_view text);
  // Writes text unchanged and flushes; for generated text, token by token.
  void stream(std::string_view text);
  // Replaces the status line, cut to the terminal's present width; an empty text removes the line.
  // Does nothing when the output is not a terminal.
  void status(std::string_view text);
  // Writes "warning: ..." to the log stream.
  void log(LogLevel level, std::string_view message);
  // A sink that calls log(), through spdlog.
  LogSink make_log_sink();

 private:
  void erase_status() SLUICE_REQUIRES(mutex_);
  void draw_status() SLUICE_REQUIRES(mutex_);

  std::FILE* const out_;
  std::FILE* const log_;
  const TerminalFacts facts_;
  Mutex mutex_;
  std::string status_ SLUICE_GUARDED_BY(mutex_);
  bool status_shown_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::cli
