#pragma once
// The output of one rank: whole lines, each behind "[rank N] ", to the stream of the launcher;
// every byte into the rank's log file; the last lines, for the message when the rank fails.
// Confined to thread: main.

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "sluice/base/fd.hpp"

namespace sluice::cli {

// The two streams of a process.
enum class Stream { out, err };

// Receives a stream's whole lines, each with its newline.
using WriteLines = std::function<void(Stream, std::string_view)>;

class RankOutput {
 public:
  // `prefix`: "[rank 0] ", before each line. `log_path`: appended to; empty: no log. Throws IoError
  // when the log cannot be opened.
  RankOutput(std::string prefix, const std::string& log_path, WriteLines write);

  // Takes bytes that the rank wrote. A carriage return ends a line, as a newline does; a line
  // longer than 64 KiB is cut. Throws IoError when the log cannot be written, after the lines were:
  // the log is closed then, and later calls go on without it.
  void take(Stream stream, std::string_view bytes);
  // The rank ended: writes lines that have no end yet.
  void finish();

  // The last lines of both streams, in the order in which they came; 20 at most.
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  void end_line(Stream stream);

  const std::string prefix_;
  const std::string log_path_;
  const WriteLines write_;
  UniqueFd log_;
  struct Line {
    std::string text;           // of the line that has no end yet
    bool after_return = false;  // the byte before was a carriage return
  };
  std::array<Line, 2> lines_;  // by stream
  std::deque<std::string> last_lines_;
};

}  // namespace sluice::cli
