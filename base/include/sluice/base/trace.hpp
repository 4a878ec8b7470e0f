#pragma once
// Trace: a timeline of a run in the Chrome trace event format, which Perfetto (ui.perfetto.dev) and
// chrome://tracing open. Components that have a trace record spans: the work, its row, its begin
// and its end. A trace is neither a log nor a counter: reported numbers come from counters.
//
// The file is a JSON array with one event per line. It is valid after every write, also when the
// run is killed. Events are collected in a fixed amount of memory; a thread of the trace writes
// them. A failing write (a full disk) ends the trace with one warning, never the run.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sluice/base/fd.hpp"
#include "sluice/base/mutex.hpp"
#include "sluice/base/ticket.hpp"

namespace sluice {

using TraceClock = std::chrono::steady_clock;

// A number of a span. `key` is a string literal; null means that the argument is absent.
struct TraceArg {
  const char* key = nullptr;
  std::int64_t value = 0;
};
using TraceArgs = std::initializer_list<TraceArg>;

// Whether the regular file at `path` is empty or begins like a trace. Throws IoError.
bool is_trace_file(const std::string& path);

// Throws InvalidArgument, naming `path`, when a trace must not be written there: `path` is neither
// a regular file nor a character device, or the file holds anything but a trace.
void check_trace_path(const std::string& path);

// The creator owns the trace, which outlives every component that records in it. Thread-safe.
class Trace {
 public:
  // Treatment of a trace that already exists at `path`.
  enum class Old {
    replace,
    keep,  // renamed to trace.1.json, or the next free number
  };
  static constexpr std::size_t kBufferBytes = 4U << 20U;  // about 30,000 events

  // Creates the file and starts the writer's thread. Takes 2 x `buffer_bytes` (at least 64 KiB) of
  // memory. A disk that is full, now or later, ends the trace with a warning. Throws as
  // check_trace_path(); StorageError when another run writes the file; IoError.
  Trace(const std::string& path, Old old, std::size_t buffer_bytes = kBufferBytes);
  // Writes the remaining events; blocks until they are written. No component may record any more.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // The number of the row `name`; makes the row when the name is new. Viewers show rows in the
  // order of their creation. Overlapping spans of a row get lanes of their own: "read", "read (2)".
  std::size_t row(std::string_view name);
  // Records a span named "WHAT SUBJECT" (ASCII; other bytes become '?'). Never waits for the file:
  // when the file is slower than the spans and the memory is full, the span is dropped and counted.
  // Throws InvalidArgument when `row` is not a number of row(), nothing else.
  void add(std::size_t row, std::string_view what, std::string_view subject,
           TraceClock::time_point begin, TraceClock::time_point end, TraceArgs args);
  // Switches recording; on at first. Spans that end while recording is off are dropped.
  void set_recording(bool recording) { recording_ = recording; }
  // Asks the writer's thread to write the recorded spans now. Does not block.
  void flush();

 private:
  struct Row {
    std::string name;
    std::vector<std::int64_t> lane_ends;  // end of each lane's last span, in nanoseconds
  };
  void open_and_lock();
  void open(Old old);
  void run();
  void write(std::string& events);
  void end_here(int error_number);
  std::size_t lane_of(std::size_t row, std::int64_t begin) SLUICE_REQUIRES(mutex_);
  bool append(std::string_view event) SLUICE_REQUIRES(mutex_);

  const std::string path_;
  const std::size_t buffer_bytes_;
  const TraceClock::time_point begin_ = TraceClock::now();
  UniqueFd fd_;
  // Where the last whole event ends; the writer's thread uses it after construction.
  std::uint64_t end_bytes_ = 0;
  std::atomic<bool> recording_{true};
  std::atomic<bool> ended_{false};  // a write has failed

  Mutex mutex_;
  CondVar changed_;
  std::vector<Row> rows_ SLUICE_GUARDED_BY(mutex_);
  std::string filling_ SLUICE_GUARDED_BY(mutex_);  // whole events
  std::uint64_t dropped_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool wanted_ SLUICE_GUARDED_BY(mutex_) = false;  // the writer has something to do
  bool stopping_ SLUICE_GUARDED_BY(mutex_) = false;
  std::thread writer_;  // last member: the thread uses all others
};

// One row of a trace, in which a component records. A row without a trace records nothing and costs
// a branch. The trace outlives its rows. Thread-safe.
class TraceRow {
 public:
  TraceRow() = default;
  TraceRow(Trace* trace, std::string_view name)
      : trace_(trace), row_(trace == nullptr ? 0 : trace->row(name)) {}

  bool on() const { return trace_ != nullptr; }
  void add(std::string_view what, std::string_view subject, TraceClock::time_point begin,
           TraceClock::time_point end, TraceArgs args = {}) const noexcept {
    if (trace_ != nullptr) trace_->add(row_, what, subject, begin, end, args);
  }

 private:
  Trace* trace_ = nullptr;
  std::size_t row_ = 0;
};

// Records the time from its construction to its destruction as a span, also when an exception ends
// the scope. The texts outlive the span. Confined to thread: its creator.
class TraceSpan {
 public:
  TraceSpan(const TraceRow& row, std::string_view what, std::string_view subject,
            TraceArg first = {}, TraceArg second = {})
      : row_(row), what_(what), subject_(subject), args_{first, second} {
    if (row_.on()) begin_ = TraceClock::now();
  }
  ~TraceSpan() {
    if (row_.on()) row_.add(what_, subject_, begin_, TraceClock::now(), {args_[0], args_[1]});
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const TraceRow row_;
  const std::string_view what_;
  const std::string_view subject_;
  const std::array<TraceArg, 2> args_;
  TraceClock::time_point begin_;
};

}  // namespace sluice
