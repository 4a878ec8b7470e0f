#pragma once
// One step of a trace (sluice train --trace), read back for a picture. Memory is bounded by the
// spans of that step. Thread-safe: values and a free function without state.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

struct TracedSpan {
  std::string name;
  double begin_us = 0;  // from the beginning of the step; may be before it
  double end_us = 0;
  std::string args;  // "bytes 4096, offset 0"; may be empty
};

// A line of the picture: spans that do not overlap, in no order.
struct TracedLane {
  std::string name;  // "read (2)"
  std::string row;   // "read"
  std::vector<TracedSpan> spans;
};

struct TracedStep {
  std::int64_t step = 0;
  double duration_us = 0;
  std::vector<TracedLane> lanes;  // in the trace's order, those without spans left out
};

// The step that was asked for; else, of the steps in the trace but the first, the one whose
// duration is the median. Empty when the trace has no (such) step: what the run began, no step has
// ended. What a killed run leaves can be read. Throws InvalidArgument when the file is no trace,
// IoError.
std::optional<TracedStep> read_traced_step(const std::string& path,
                                           std::optional<std::int64_t> step);

}  // namespace sluice::cli
