#pragma once
// The log: one sink, set by the application. Libraries never print. Without a sink, errors and
// warnings go to standard error; info and debug are dropped.
//
// Levels: error, warn, info (once per run or checkpoint), debug (everything else). Log lines carry
// no measurements; reports and counters do. Thread-safe.

#include <functional>
#include <string_view>

namespace sluice {

enum class LogLevel { error = 0, warn = 1, info = 2, debug = 3 };

using LogSink = std::function<void(LogLevel, std::string_view message)>;

// Replaces the sink. The sink gets messages of level `most_verbose` and more severe ones, from one
// thread at a time, and must not call log(). An empty sink restores the default. Blocks while a
// message is being written.
void set_log_sink(LogSink sink, LogLevel most_verbose = LogLevel::info);

// Passes `message` to the sink. Blocks while another thread's message is being written. Reports an
// exception of the sink on standard error.
void log(LogLevel level, std::string_view message) noexcept;

}  // namespace sluice
