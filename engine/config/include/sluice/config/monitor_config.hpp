#pragma once
// DeepSpeed's monitors and breakdowns: files and lines of `sluice train` about its steps, beside
// steps.jsonl. Thread-compatible: plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sluice::config {

// The sections "tensorboard" and "csv_monitor".
struct MonitorFiles {
  bool enabled = false;
  std::string output_path;  // empty: the working folder
  std::string job_name = "DeepSpeedJobName";

  // The folder of the files.
  std::string directory() const {
    const std::string name = job_name.empty() ? "." : job_name;
    return output_path.empty() ? name : output_path + "/" + name;
  }
};

// The section "flops_profiler".
struct FlopsProfilerConfig {
  bool enabled = false;             // wall_clock_breakdown is on then
  std::int64_t profile_step = 1;    // steps before the one that is profiled
  double recompute_fwd_factor = 0;  // forwards that a backward repeats
  bool detailed = true;             // with a table of the model's parts
  std::string output_file;          // empty: standard output
};

// The section "comms_logger": a table of the calls over the ranks.
struct CommsLoggerConfig {
  bool enabled = false;
  bool verbose = false;                    // a line of the log for each call of rank 0
  bool prof_all = true;                    // false: only the operations of prof_ops
  bool debug = false;                      // told apart by what the call is for, too
  std::vector<std::string> prof_ops = {};  // by our names
};

struct MonitorsConfig {
  MonitorFiles tensorboard;
  MonitorFiles csv;
  std::optional<std::int64_t> steps_per_print;  // empty: no printing
  bool wall_clock_breakdown = false;            // a line of times after every step
  bool memory_breakdown = false;                // lines of memory after every step
  bool throughput = true;  // with steps_per_print: a line of samples per second
  FlopsProfilerConfig flops_profiler;
  CommsLoggerConfig comms_logger;
};

}  // namespace sluice::config
