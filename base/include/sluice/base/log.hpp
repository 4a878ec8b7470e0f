#pragma once
// One sink, set by the application; libraries never print. Without a sink, errors and warnings go
// to standard error and the rest nowhere.
//
// Levels: error, warn, info (once per run or checkpoint), debug (everything else). Numbers come out
// of reports and counters, not out of log lines. Thread-safe.

#include <functional>
#include <string_view>

namespace sluice {

enum class LogLevel { error = 0, warn = 1, info = 2, debug = 3 };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Replaces the sink; `most_verbose` and everything more severe is passed on. The sink is called by
// one thread at a time and must not log itself. An empty sink restores the default.
void set_log_sink(LogSink sink, LogLevel most_verbose = LogLevel::info);

// Never throws; blocks while another thread's message is being written.
void log(LogLevel level, std::string_view message) noexcept;

// Whether a message of this level would reach the sink; to avoid building it.
bool log_enabled(LogLevel level) noexcept;

}  // namespace sluice
