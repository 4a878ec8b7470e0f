#pragma once
// Reads one step of a trace (sluice train --trace) for a picture. Memory is bounded by the spans of
// that step. Thread-safe: values and a free function without state.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice::cli {

struct TracedSpan {
  std::string name;
  double begin_us = 0;  // since the beginning of the step; may be negative
  double end_us = 0;
  std::string args;  // "bytes 4096, offset 0"; may be empty
};

// A line of the picture: spans that do not overlap, in any order.
struct TracedLane {
  std::string name;  // "read (2)"
  std::string row;   // "read"
  std::vector<TracedSpan> spans;
};

struct TracedStep {
  std::int64_t step = 0;
  double duration_us = 0;
  std::vector<TracedLane> lanes;  // in the trace's order, without empty lanes
};

// Reads `step`. Without `step` the function chooses the step of median duration, and excludes the
// trace's first step if there are others. Empty when the trace lacks the step, or has no finished
// step at all. The trace of a killed run can be read. Throws InvalidArgument when the file is no
// trace. Throws IoError.
std::optional<TracedStep> read_traced_step(const std::string& path,
                                           std::optional<std::int64_t> step);

}  // namespace sluice::cli
