#pragma once
// LogLines: the log of the libraries as lines that a thread of Python takes. No thread of the
// engine waits for Python.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sluice/base/log.hpp"

namespace sluice::python {

// Thread-safe. From the constructor to end() it is the process's sink of log(), for info and more
// severe lines. What cannot be taken goes to standard error: lines of a forked child, which has no
// thread that takes, and those beyond 10,000 that wait.
class LogLines {
 public:
  using Line = std::pair<LogLevel, std::string>;

  LogLines();
  ~LogLines() { end(); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  // Blocks until there are lines, and returns them in the order of their calls. Returns none after
  // end(), when all lines are taken.
  std::vector<Line> take();

  // Restores the default sink. A forked child's call does nothing.
  void end();

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;  // the sink holds it too
};

}  // namespace sluice::python
